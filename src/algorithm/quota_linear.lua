-- Mirrors src/algorithm/quota_linear.rs. Parameters: limit window tick token.
-- State: b start left (bursty), s start (spent), m full (smooth, in units of 1 ns/tick).

if family == 'q' then
    local limit, window, tick, token = match(parameters, '^q ([1-9]%d*) ([1-9]%d*) ([1-9]%d*) ([1-9]%d*)$')
    if not limit then
        return nil
    end
    limit, window, tick, token = natural(limit), natural(window), natural(tick), natural(token)
    local now = now()
    local rule = { limit = limit, window = window, tick = tick, token = token, divisible = true }

    local function fine(time)
        return times(time, tick)
    end

    -- The cost in units of 1 ns/tick.
    local function cost_of(cost)
        return times(cost, token)
    end

    local function full_after(start)
        return minus(add(fine(start), times(fine(window), 2)), token)
    end

    -- Returns 'fresh'; or 'bursty', start, left; or 'smooth', missing.
    function rule.standing(state)
        if not state then
            return 'fresh'
        end
        if state.left then
            if less(minus(now, state.start), window) then
                return 'bursty', state.start, state.left
            end
            return 'fresh'
        end
        local missing = minus(state.full or full_after(state.start), fine(now))
        if missing == 0 then
            return 'fresh'
        end
        return 'smooth', missing
    end

    local function bursty(start, left)
        if left == 0 and limit ~= 1 then
            return { start = start }
        end
        return { start = start, left = left }
    end

    -- The start of the window that contains now, and the tokens left.
    function rule.window_at(state)
        if state.start and less(minus(now, state.start), window) then
            return state.start, state.left or 0
        end
    end

    local function smooth(missing)
        return missing ~= 0 and { full = add(fine(now), missing) } or nil
    end

    -- The most that a smooth balance can lack.
    local function furthest()
        return add(times(fine(window), 2), fine(MAX_DEBT))
    end

    function rule.read(text)
        local kind, first, second = match(text, '^([bsm]) (%d+) ?(%d*)$')
        if not kind or (kind == 'b') ~= (second ~= '') then
            return nil, true
        end
        first = natural(first)
        if kind == 'm' then
            if less(add(add(fine(now), furthest()), fine(STEP_BACK)), first) then
                return smooth(furthest()), true
            end
            return { full = first }
        end
        -- a carried window may start later; but the script gave it a lifetime
        local healed = less(add(now, STEP_BACK), first) and redis.call('PTTL', key) < 0
        local start = healed and now or first
        if kind == 's' then
            return { start = start }, healed
        end
        local left = natural(second)
        if less(limit, left) then
            left, healed = limit, true
        end
        return { start = start, left = left }, healed
    end

    function rule.write(state)
        if state.full then
            return 'm ' .. digits(state.full)
        end
        if state.left then
            return 'b ' .. digits(state.start) .. ' ' .. digits(state.left)
        end
        return 's ' .. digits(state.start)
    end

    function rule.decide(state, cost)
        if cost == 0 then
            return true, state
        end
        if less(limit, cost) then
            return false, state
        end
        local standing, first, left = rule.standing(state)
        if standing == 'fresh' then
            return true, bursty(now, minus(limit, cost))
        end
        if standing == 'bursty' then
            if less(left, cost) then
                return false, state
            end
            return true, bursty(first, minus(left, cost))
        end
        local missing = add(first, cost_of(cost))
        if less(cost_of(limit), missing) then
            return false, state
        end
        return true, smooth(missing)
    end

    if op == 'refund' then
        function rule.refund(state, cost, full_at)
            full_at = natural(full_at)
            if state.full then
                local full, at = state.full, fine(full_at)
                local foreseen = less(at, full) and minus(at, minus(tick, 1)) or full
                local back = least(cost_of(cost), minus(foreseen, fine(now)))
                return smooth(minus(minus(full, fine(now)), back))
            end
            local ends = word(add(state.start, window))
            if state.left then
                local left = equal(full_at, ends) and word(add(state.left, cost)) or state.left
                return less(left, limit) and bursty(state.start, left) or nil
            end
            if not equal(full_at, ends) and not equal(full_at, word(divide_up(full_after(state.start), tick))) then
                return state
            end
            return less(now, ends) and less(cost, limit) and bursty(state.start, cost) or nil
        end
    end

    function rule.debit(state, cost)
        if cost == 0 then
            return state
        end
        local standing, first, left = rule.standing(state)
        local start, missing = now, 0
        if standing == 'fresh' then
            left = limit
        elseif standing == 'bursty' then
            start = first
        else
            left, missing = 0, first
        end
        local owed = cost_of(minus(cost, left))
        if missing == 0 and (owed == 0 or limit == 1) then
            return bursty(start, minus(left, cost))
        end
        local before = missing == 0 and minus(full_after(start), fine(now)) or missing
        return smooth(least(add(before, owed), greatest(furthest(), before)))
    end

    function rule.evictability(state)
        if state.left then
            return minus(word(add(state.start, window)), now)
        end
        return minus(divide_up(state.full or full_after(state.start), tick), now)
    end

    function rule.migrate_state(old, state)
        if equal(limit, old.limit) and equal(window, old.window) then
            return state
        end
        local standing, missing = old.standing(state)
        if standing == 'fresh' then
            return nil
        end
        if state.full and limit == 1 then
            local left = divide_up(minus(missing, times(minus(old.limit, 1), old.token)), old.tick)
            return left ~= 0 and bursty(minus(word(add(now, left)), window), 0) or nil
        end
        if state.full then
            local whole, old_whole = cost_of(limit), times(old.limit, old.token)
            local used = least(missing, old_whole)
            local owed = scale_ceil(minus(missing, used), token, old.token)
            return smooth(least(add(scale_ceil(used, whole, old_whole), owed), furthest()))
        end
        local used = minus(old.limit, state.left or 0)
        local keeps_length = less(now, state.start) or not less(used, limit)
        local length = keeps_length and old.window or greatest(old.window, window)
        local start, left = minus(word(add(state.start, length)), window), minus(limit, used)
        return state.left and { start = start, left = left } or bursty(start, left)
    end

    function rule.keeps_old_parameters(old, state, cost)
        local start, left = old.window_at(state)
        local is_over_limit = not less(minus(old.limit, left or 0), limit)
        if start then
            return is_over_limit or less(window, old.window) and not less(left, cost)
        end
        return cost == 0 and not state.full and not state.left and is_over_limit
    end

    return rule
end
