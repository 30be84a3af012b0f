-- Mirrors src/algorithm/cycle.rs. Parameters: limit period burst max_wait max_cost. State: start, used, lent.

if family == 'y' then
    local limit, period, burst, max_wait, max_cost =
        match(parameters, '^y ([1-9]%d*) ([1-9]%d*) ([1-9]%d*) (%d+) ([1-9]%d*)$')
    if not limit then
        return nil
    end
    limit, period, burst = natural(limit), natural(period), natural(burst)
    max_wait, max_cost = natural(max_wait), natural(max_cost)
    local now = now()
    -- A fresh key's cycles begin later: the state is kept for a while after the key is full, but not for long.
    local rule = { limit = limit, period = period, burst = burst, divisible = true, lingers = DAY }

    -- The state in the current cycle.
    function rule.at(state)
        local cycles, rest = divide(minus(now, state.start), period)
        if cycles == 0 then
            return state
        end
        local used = minus(state.used, word(times(cycles, limit)))
        return { start = minus(now, rest), used = used, lent = used }
    end

    local function or_fresh(state)
        return state or { start = now, used = 0, lent = 0 }
    end

    local function cycle_of(used)
        return word(divide_up(minus(used, burst), limit))
    end

    local function wait_until(state, count)
        return count == 0 and 0 or word(minus(add(times(count, period), state.start), now))
    end

    local function max_owed()
        return word(add(max_cost, word(times(add(divide(MAX_DEBT, period), 1), limit))))
    end

    function rule.read(text)
        local start, used, lent = match(text, '^(%d+) (%d+) (%d+)$')
        if not start then
            return nil, true
        end
        local state = { start = natural(start), used = natural(used), lent = natural(lent) }
        local healed = false
        if less(add(now, STEP_BACK), state.start) then
            state.start, healed = now, true
        end
        if less(max_cost, state.used) and less(max_owed(), state.used) then
            state.used, healed = max_owed(), true
        end
        if less(max_cost, state.lent) and less(max_owed(), state.lent) then
            state.lent, healed = max_owed(), true
        end
        return state, healed
    end

    function rule.write(state)
        return digits(state.start) .. ' ' .. digits(state.used) .. ' ' .. digits(state.lent)
    end

    -- A denied first request starts the cycles too.
    function rule.decide(state, cost)
        if cost == 0 then
            return true, state
        end
        local kept = or_fresh(state)
        if less(max_cost, cost) then
            return false, kept
        end
        local current = rule.at(kept)
        local used = add(current.used, cost)
        if not equal(used, word(used)) or less(max_wait, wait_until(current, cycle_of(used))) then
            return false, kept
        end
        return true, { start = current.start, used = used, lent = current.lent }
    end

    if op == 'refund' then
        function rule.refund(state, cost, full_at)
            local current = rule.at(state)
            local left = word(divide_up(minus(natural(full_at), current.start), period))
            local unforgiven = 0
            if left ~= 0 then
                local whole_cost = less(divide_up(current.lent, limit), left)
                unforgiven = whole_cost and cost or word(add(word(times(minus(left, 1), limit)), 1))
            end
            local used = minus(current.used, least(cost, unforgiven))
            return { start = current.start, used = used, lent = current.lent }
        end
    end

    function rule.debit(state, cost)
        if cost == 0 then
            return state
        end
        local current = rule.at(or_fresh(state))
        local used = least(word(add(current.used, cost)), greatest(max_owed(), current.used))
        return { start = current.start, used = used, lent = current.lent }
    end

    function rule.evictability(state)
        return minus(add(state.start, times(divide_up(state.used, limit), period)), now)
    end

    function rule.migrate_state(old, state)
        if equal(limit, old.limit) and equal(period, old.period) and equal(burst, old.burst) then
            return state
        end
        local current = old.at(state)
        local passed = divide(times(minus(now, current.start), period), old.period)
        local function scaled(permits)
            local share = word(scale_ceil(least(permits, old.burst), burst, old.burst))
            return least(word(add(share, minus(permits, old.burst))), max_owed())
        end
        return {
            start = minus(greatest(now, current.start), word(passed)),
            used = scaled(current.used),
            lent = scaled(current.lent),
        }
    end

    function rule.keeps_old_parameters(_, _, cost)
        return cost == 0
    end

    return rule
end
