-- Mirrors src/algorithm/sliding_window.rs. Parameters: limit window. State: window, current, previous.

if family == 'w' then
    local limit, length = match(parameters, '^w ([1-9]%d*) ([1-9]%d*)$')
    if not limit then
        return nil
    end
    limit, length = natural(limit), natural(length)
    local now = now()
    local rule = { length = length, divisible = true, is_window = true }

    -- The counts in this window, or in a later one of theirs.
    local function in_window(window, state)
        if state and not less(state.window, window) then
            return state
        end
        if state and equal(window, add(state.window, 1)) then
            return { window = window, current = 0, previous = state.current }
        end
        return { window = window, current = 0, previous = 0 }
    end

    function rule.at(state)
        return in_window((divide(now, length)), state)
    end

    local function beginning(window)
        return times(window, length)
    end

    local function covered(counts)
        return minus(length, minus(now, beginning(counts.window)))
    end

    function rule.used(counts)
        local weighted = divide_up(times(counts.previous, covered(counts)), length)
        return word(add(counts.current, weighted))
    end

    local function some(counts)
        return (counts.current ~= 0 or counts.previous ~= 0) and counts or nil
    end

    function rule.read(text)
        local window, current, previous = match(text, '^(%d+) (%d+) (%d+)$')
        if not window then
            return nil, true
        end
        local state, healed = { window = natural(window), current = natural(current), previous = natural(previous) }, false
        if less(divide(add(now, STEP_BACK), length), state.window) then
            state.window, healed = divide(now, length), true
        end
        if less(word(state.current), state.current) or less(word(state.previous), state.previous) then
            state.current, state.previous, healed = least(state.current, limit), least(state.previous, limit), true
        end
        return state, healed
    end

    function rule.write(state)
        return digits(state.window) .. ' ' .. digits(state.current) .. ' ' .. digits(state.previous)
    end

    -- prev·covered/window + cur + cost ≤ limit, multiplied out: true exactly where SlidingWindow::wait is 0.
    function rule.decide(state, cost)
        if cost == 0 then
            return true, state
        end
        local counts = rule.at(state)
        local taken = add(counts.current, cost)
        if less(limit, taken) then
            return false, state
        end
        if less(times(minus(limit, taken), length), times(counts.previous, covered(counts))) then
            return false, state
        end
        return true, { window = counts.window, current = taken, previous = counts.previous }
    end

    if op == 'refund' then
        function rule.refund(state, cost, full_at)
            full_at = natural(full_at)
            local function forgotten(window)
                return word(beginning(add(window, 2)))
            end
            local current, previous = state.current, state.previous
            if equal(full_at, forgotten(state.window)) then
                current = minus(current, cost)
            elseif state.window ~= 0 and equal(full_at, forgotten(minus(state.window, 1))) then
                previous = minus(previous, cost)
            else
                return some(state)
            end
            return some({ window = state.window, current = current, previous = previous })
        end
    end

    function rule.debit(state, cost)
        if cost == 0 then
            return state
        end
        local counts = rule.at(state)
        return { window = counts.window, current = word(add(counts.current, cost)), previous = counts.previous }
    end

    function rule.merge(state, other)
        if not state then
            return some(rule.at(other))
        end
        local window = greatest(state.window, other.window)
        local kept, more = in_window(window, state), in_window(window, other)
        if not less(kept.current, more.current) and not less(kept.previous, more.previous) then
            return state
        end
        return {
            window = window,
            current = greatest(kept.current, more.current),
            previous = greatest(kept.previous, more.previous),
        }
    end

    function rule.forgotten(state)
        return beginning(add(state.window, state.current ~= 0 and 2 or 1))
    end

    function rule.evictability(state)
        return minus(rule.forgotten(state), now)
    end

    function rule.migrate_state(old, state)
        if equal(length, old.length) then
            return state
        end
        local current, window = old.used(old.at(state)), divide(now, length)
        if less(length, old.length) then
            window = greatest(window, minus(divide_up(old.forgotten(state), length), 2))
        end
        return current ~= 0 and { window = window, current = current, previous = 0 } or nil
    end

    function rule.keeps_old_parameters(old, state)
        return less(length, old.length) and old.used(old.at(state)) ~= 0
    end

    return rule
end
