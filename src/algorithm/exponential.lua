-- Mirrors src/algorithm/exponential.rs, in doubles as there. Parameters: l|s limit period. State: rate last share.

if family == 'x' then
    local policy, limit, period = match(parameters, '^x ([ls]) (%S+) ([1-9]%d*)$')
    if not policy then
        return nil
    end
    limit, period = decimal(limit), double(natural(period))
    if not limit or limit < 1 then
        return nil
    end
    local now = now()
    local exp, log = math.exp, math.log
    local rule = { limit = limit, period = period, denials_count = policy == 's' }

    local NEAR, MAX_OWED = 1e-11, 9223372036854775808

    function rule.periods(interval)
        return double(interval) / period
    end

    -- (1 − e^−x)/x, 1 at x = 0: W. Kahan's method for expm1 with exp and log alone.
    local function share(x)
        if x == 0 then
            return 1
        end
        local decay = exp(-x)
        if decay == 1 then
            return 1
        end
        if decay - 1 == -1 then
            return 1 / x
        end
        return (decay - 1) / log(decay)
    end

    local function rate_after(rate, interval, cost)
        local x = interval / period
        return share(x) * cost + exp(-x) * rate
    end

    local function solve(rate, cost)
        local x = max(log(rate / limit), 0)
        for _ = 1, 20 do
            local decay, part = exp(-x), share(x)
            local excess = part * cost + decay * rate - limit
            local falling = x < 1e-4 and 0.5 or (part - decay) / x
            local step = excess / (falling * cost + decay * rate)
            x = x + max(step, 0)
            if step <= x * 1e-15 then
                break
            end
        end
        return x
    end

    local function first_from(near, holds)
        near = max(near, 1)
        local step, without, with = 1, near, near
        if holds(near) then
            while without > 0 and holds(without) do
                with, without, step = without, max(without - step, 0), step * 4
            end
        else
            while not holds(with) do
                if with >= 18446744073709551616 then
                    return with
                end
                without, with, step = with, with + step, step * 4
            end
        end
        while with - without > 1 do
            local middle = floor((with + without) / 2)
            if middle <= without or middle >= with then
                break
            end
            if holds(middle) then
                with = middle
            else
                without = middle
            end
        end
        return with
    end

    local function interval_until(rate, cost)
        local function fits(interval)
            return rate_after(rate, interval, cost) <= limit
        end
        if fits(0) then
            return 0
        end
        return first_from(floor(solve(rate, cost) * period), fits)
    end

    local function fits(state, cost)
        if less(truncated(limit), cost) then
            return false
        end
        if not state then
            return true
        end
        local interval = double(minus(now, state.last))
        local room = limit - rate_after(state.rate, interval, cost)
        if math.abs(room) > NEAR * limit then
            return room > 0
        end
        return interval >= interval_until(state.rate, cost)
    end

    local function measured(state, cost)
        cost = double(cost)
        if not state then
            return { rate = cost, last = now, share = 1 }
        end
        local interval = double(minus(now, state.last))
        local decayed = rate_after(state.rate, interval, 0)
        return {
            rate = max(rate_after(state.rate, interval, cost), cost),
            last = greatest(now, state.last),
            share = max(share(interval / period), 1 - decayed / cost),
        }
    end

    function rule.read(text)
        local rate, last, part = match(text, '^(%S+) (%d+) (%S+)$')
        rate, part = rate and decimal(rate), part and decimal(part)
        if not rate or not part or rate <= 0 or part > 1 then
            return nil, true
        end
        local state, healed = { rate = rate, last = natural(last), share = part }, false
        if rate > 1e40 then
            state.rate, state.share, healed = MAX_OWED, 0, true
        end
        if less(add(now, STEP_BACK), state.last) then
            state.last, healed = now, true
        end
        return state, healed
    end

    function rule.write(state)
        return format('%.17g %s %.17g', state.rate, digits(state.last), state.share)
    end

    function rule.decide(state, cost)
        if cost == 0 then
            return true, state
        end
        local admitted = fits(state, cost)
        return admitted, (admitted or rule.denials_count) and measured(state, cost) or state
    end

    -- The gateway computed full_at with its own exp and log, whose last digits may differ.
    if op == 'refund' then
        function rule.refund(state, cost, full_at)
            local until_full = interval_until(state.rate, floor(limit))
            local foreseen = double(minus(natural(full_at), state.last))
            if math.abs(until_full - foreseen) > 1e-9 * until_full then
                return state
            end
            local rate = state.rate - state.share * double(cost)
            return rate > 0 and { rate = rate, last = state.last, share = 0 } or nil
        end
    end

    function rule.debit(state, cost)
        if cost == 0 then
            return state
        end
        local decayed = state and rate_after(state.rate, double(minus(now, state.last)), 0) or 0
        local max_rate, after = max(MAX_OWED, decayed), measured(state, cost)
        if after.rate > max_rate then
            after.rate, after.share = max_rate, 0
        end
        return after
    end

    -- The latest time: then e^−x·rate is below 0.36, and a request's own part is below 0.64 of its cost.
    function rule.evictability(state)
        local periods = max(log(state.rate) + 1.1, 1)
        return minus(add(state.last, truncated(periods * period)), now)
    end

    function rule.migrate_state(old, state)
        if limit == old.limit and period == old.period then
            return state
        end
        local interval = old.periods(minus(now, state.last)) * period
        return {
            rate = state.rate * limit / old.limit,
            last = minus(greatest(now, state.last), truncated(interval)),
            share = 0,
        }
    end

    return rule
end
