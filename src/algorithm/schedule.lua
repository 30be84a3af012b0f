-- Mirrors src/algorithm/schedule.rs: gcra, token_bucket, leaky_bucket, leaky_queue.
--
-- Parameters: tokens period burst tolerance, the last in units of 1 ns/tokens. The state passed between functions is how
-- far the TAT lies ahead of now, in these units; not 0. Kept are the TAT's seconds, nanoseconds and the rest of one, in
-- these units: so the difference to now is taken between small numbers, and only that difference is multiplied.

if family == 's' then
    local tokens, period, burst, tolerance = match(parameters, '^s ([1-9]%d*) ([1-9]%d*) ([1-9]%d*) (%d+)$')
    if not tokens then
        return nil
    end
    tokens, period, burst, tolerance = natural(tokens), natural(period), natural(burst), natural(tolerance)
    local rule = { tokens = tokens, period = period, burst = burst, divisible = true }
    -- Charges that a gateway has made by itself are debited as of the time since which they came: TAT' is the greater of the
    -- TAT and that time, plus their cost. The state stays for a while after the key is full, for such debits of other gateways.
    local since = op == 'debit' and match(argument, '^%d+')
    local seconds, nanos = seconds, nanos
    if since and from_now(since) == 0 then
        seconds, nanos = tonumber(substring(since, 1, -10)), tonumber(substring(since, -9))
        rule.lingers = times(10, SECOND)
    end

    -- The furthest that a debt may put the TAT ahead.
    local function furthest()
        return add(times(times(burst, period), 2), times(MAX_DEBT, tokens))
    end

    local function state_ahead(ahead)
        return ahead ~= 0 and ahead or nil
    end

    function rule.read(text)
        local s, n, rest = match(text, '^(%d+) (%d+) (%d+)$')
        if not s then
            return nil, true
        end
        s, n, rest = natural(s), natural(n), natural(rest)
        if not less(n, SECOND) or not less(rest, tokens) then
            return nil, true
        end
        if less(s, seconds) then
            return nil
        end
        local since = add(times(minus(s, seconds), SECOND), n)
        if less(since, nanos) then
            return nil
        end
        local ahead = add(times(minus(since, nanos), tokens), rest)
        if less(tolerance, ahead) and less(add(furthest(), times(STEP_BACK, tokens)), ahead) then
            return furthest(), true
        end
        return state_ahead(ahead)
    end

    function rule.write(ahead)
        local whole_nanos, rest = divide(ahead, tokens)
        local s, n = divide(add(whole_nanos, nanos), SECOND)
        return digits(add(s, seconds)) .. ' ' .. digits(n) .. ' ' .. digits(rest)
    end

    function rule.decide(ahead, cost)
        if cost == 0 then
            return true, ahead
        end
        local after = add(ahead or 0, times(cost, period))
        if less(tolerance, after) then
            return false, ahead
        end
        return true, after
    end

    -- How many times a charge of cost fits, at most want times.
    if op == 'partial' then
        function rule.fits(ahead, cost, want)
            if cost == 0 then
                return want
            end
            return least(want, (divide(minus(tolerance, ahead or 0), times(cost, period))))
        end
    end

    -- Nothing comes back of a charge that was refilled before now, see schedule::recoverable.
    if op == 'refund' then
        function rule.refund(ahead, cost, full_at)
            local full = times(from_now(full_at), tokens)
            if full == 0 then
                return ahead
            end
            local foreseen = less(full, ahead) and minus(full, minus(tokens, 1)) or ahead
            return state_ahead(minus(ahead, least(times(cost, period), foreseen)))
        end
    end

    function rule.debit(ahead, cost)
        if cost == 0 then
            return ahead
        end
        local before = ahead or 0
        if since and not rule.is_kept then
            -- the TAT may have been any time until now
            before = greatest(before, times(minus(now(), natural(since)), tokens))
        end
        return state_ahead(least(add(before, times(cost, period)), greatest(furthest(), before)))
    end

    function rule.merge(ahead, other)
        return less(ahead or 0, other) and other or ahead
    end

    function rule.evictability(ahead)
        return divide_up(ahead, tokens)
    end

    function rule.migrate_state(old, ahead)
        if equal(tokens, old.tokens) and equal(period, old.period) and equal(burst, old.burst) then
            return ahead
        end
        local used = least(ahead, times(old.burst, old.period))
        local share = scale_ceil(used, times(burst, period), times(old.burst, old.period))
        local owed = scale_ceil(minus(ahead, used), period, old.period)
        return state_ahead(least(add(share, owed), furthest()))
    end

    return rule
end
