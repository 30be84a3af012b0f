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
    local calendar, usual_length = length, nil
    if kind == 'c' then
        local days = { day = 1, week = 7, month = 31 }
        length, usual_length = 32 * DAY, (days[match(length, '^%a+')] or 31) * DAY
    elseif match(length, '^[1-9]%d*$') then
        length = natural(length)
        usual_length = length
    else
        return nil
    end
    local now = now()
    local rule = { kind = kind, calendar = calendar, usual_length = usual_length, divisible = true, is_window = true }

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
        -- Window::contains_end; the clock of a calendar here is never set
        local function contains_end(ends, full_at)
            if kind == 'c' then
                return equal(ends, full_at)
            end
            return not less(ends, full_at) and less(minus(ends, length), full_at)
        end

        function rule.refund(state, cost, full_at)
            if not contains_end(state.ends, natural(full_at)) then
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

    local function is_window_of(old)
        return kind == old.kind and calendar == old.calendar
    end

    local function carried_end(old, ends)
        if is_window_of(old) then
            return ends
        end
        local begins = minus(ends, old.usual_length)
        return greatest(ends, least(window_end(), word(add(begins, usual_length))))
    end

    function rule.migrate_state(old, state)
        return is_open(state) and { ends = carried_end(old, state.ends), used = state.used } or nil
    end

    function rule.keeps_old_parameters(old, state)
        return not is_window_of(old) and is_open(state) and equal(carried_end(old, state.ends), state.ends)
    end

    return rule
end
