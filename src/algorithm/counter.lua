-- Mirrors src/algorithm/counter.rs: fixed_window, quota_reset.
--
-- Parameters: f|e|c limit length: windows from the first request, from the epoch, or of a calendar. Of a calendar the
-- length is only a name; the ends of some of its units around now come as the argument beside the cost, before a semicolon.
-- State: ends, used.

if family == 'c' then
    local kind, limit, length = match(parameters, '^c ([fec]) ([1-9]%d*) (%S+)$')
    if not kind then
        return nil
    end
    local ends_around_now = match(argument, '^[^;]*')
    limit = natural(limit)
    local calendar = length
    if kind == 'c' then
        length = 32 * DAY
    elseif match(length, '^[1-9]%d*$') then
        length = natural(length)
    else
        return nil
    end
    local now = now()
    local rule = { kind = kind, length = length, calendar = calendar, divisible = true, is_window = true }

    -- Window::end
    local function window_end()
        if kind == 'f' then
            return word(add(now, length))
        end
        if kind == 'e' then
            local _, into = divide(now, length)
            return word(add(minus(now, into), length))
        end
        for ends in string.gmatch(ends_around_now, '%d+') do
            ends = natural(ends)
            if less(now, ends) then
                return ends
            end
        end
        return add(now, length)
    end

    local function is_open(state)
        return less(now, state.ends)
    end

    local function current(state)
        return state and is_open(state) and state or { ends = window_end(), used = 0 }
    end

    function rule.read(text)
        local ends, used = match(text, '^(%d+) (%d+)$')
        if not ends then
            return nil, true
        end
        local state, healed = { ends = natural(ends), used = natural(used) }, false
        if less(word(add(add(now, length), STEP_BACK)), state.ends) then
            state.ends, healed = window_end(), true
        end
        if less(word(state.used), state.used) then
            state.used, healed = limit, true
        end
        return state, healed
    end

    function rule.write(state)
        return digits(state.ends) .. ' ' .. digits(state.used)
    end

    function rule.decide(state, cost)
        if cost == 0 then
            return true, state
        end
        local window = current(state)
        local used = add(window.used, cost)
        if less(limit, used) then
            return false, state
        end
        return true, { ends = window.ends, used = used }
    end

    if op == 'refund' then
        function rule.refund(state, cost, full_at)
            if not equal(state.ends, natural(full_at)) then
                return state
            end
            local used = minus(state.used, cost)
            return used ~= 0 and { ends = state.ends, used = used } or nil
        end
    end

    function rule.debit(state, cost)
        if cost == 0 then
            return state
        end
        local window = current(state)
        return { ends = window.ends, used = word(add(window.used, cost)) }
    end

    -- Of no use are states whose windows are over.
    function rule.merge(state, other)
        if not is_open(other) then
            return state
        end
        if not state or not is_open(state) then
            return other
        end
        local first, last = state, other
        if not less(state.ends, other.ends) then
            first, last = other, state
        end
        local is_over = less(first.ends, last.ends)
        if kind == 'f' then
            is_over = not less(minus(last.ends, length), first.ends)
        end
        if is_over or not less(last.used, first.used) then
            return last
        end
        return { ends = last.ends, used = first.used }
    end

    function rule.evictability(state)
        return minus(state.ends, now)
    end

    function rule.migrate_state(old, state)
        if not is_open(state) then
            return nil
        end
        if kind == old.kind and (kind == 'c' and calendar == old.calendar or kind ~= 'c' and equal(length, old.length)) then
            return state
        end
        local ends = kind == 'f' and old.kind == 'f' and carried_end(state.ends, old.length, length) or window_end()
        return { ends = ends, used = state.used }
    end

    return rule
end
