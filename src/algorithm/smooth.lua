-- Mirrors src/algorithm/smooth.rs and its shapes, in doubles and whole microseconds as there.
--
-- Parameters: b|w tokens period max_wait ahead stable max_stored cool threshold slope; ahead is the most microseconds that a
-- debt may reserve. State: next stored.

if family == 'm' then
    local shape, tokens, period, max_wait, ahead, stable, max_stored, cool, threshold, slope = match(parameters, '^m ([bw]) (%d+) (%d+) (%d+) (%d+) (%S+) (%S+) (%S+) (%S+) (%S+)$')
    if not shape then
        return nil
    end
    max_wait, ahead = natural(max_wait), natural(ahead)
    stable, max_stored, cool = decimal(stable), decimal(max_stored), decimal(cool)
    threshold, slope = decimal(threshold), decimal(slope)
    if not (stable and max_stored and cool and threshold and slope) or cool <= 0 then
        return nil
    end
    local us = seconds * 1e6 + floor(nanos / 1000)
    local min = math.min
    local identity = table.concat({ shape, tokens, period, stable, max_stored, cool, threshold, slope }, ' ')
    -- A fresh bursty key has no stored permits: the state is kept for a while after all permits are stored.
    local rule = { identity = identity, max_stored = max_stored, lingers = shape == 'b' and DAY or 0 }

    local function price_at(permits)
        return stable + permits * slope
    end

    local function price(stored, taken)
        if shape == 'b' then
            return 0
        end
        local above = stored - threshold
        if above <= 0 then
            return truncated(stable * taken)
        end
        local cold = min(above, taken)
        local area = cold * (price_at(above) + price_at(above - cold)) / 2
        return word(add(truncated(area), truncated(stable * (taken - cold))))
    end

    local function undo(stored, cost, latest, left)
        if shape == 'b' then
            local whole_price = cost * stable
            local unforgiven = left + min(cost, max_stored) * stable
            return stored, truncated(latest and whole_price or min(whole_price, unforgiven))
        end
        local back = min(max_stored, stored + cost)
        local lowest = cost * stable
        if latest then
            return back, stored > 0 and price(back, cost) or truncated(lowest)
        end
        local max_taken = min(cost, max_stored)
        local surcharge = double(price(max_stored, max_taken)) - max_taken * stable
        return back, truncated(min(lowest, left - surcharge))
    end

    function rule.synced(state)
        if not state then
            return { next = us, stored = shape == 'b' and 0 or max_stored }
        end
        if less(state.next, us) then
            local gained = double(minus(us, state.next)) / cool
            return { next = us, stored = min(max_stored, state.stored + gained) }
        end
        return state
    end

    local function charged(state, cost)
        cost = double(cost)
        local taken = min(cost, state.stored)
        local fresh = truncated((cost - taken) * stable)
        local cost_in_time = word(add(price(state.stored, taken), fresh))
        return { next = word(add(state.next, cost_in_time)), stored = state.stored - taken }
    end

    -- Any cost is admitted, so a reservation may lie arbitrarily far ahead; but a reservation by this script has a lifetime.
    function rule.read(text)
        local next, stored = match(text, '^(%d+) (%S+)$')
        stored = stored and decimal(stored)
        if not stored then
            return nil, true
        end
        local state, healed = { next = natural(next), stored = min(stored, max_stored) }, stored > max_stored * (1 + 1e-9)
        local furthest = add(us, ahead)
        if less(word(state.next), state.next) or less(furthest, state.next) and redis.call('PTTL', key) < 0 then
            state.next, healed = furthest, true
        end
        return state, healed
    end

    function rule.write(state)
        return format('%s %.17g', digits(state.next), state.stored)
    end

    function rule.decide(state, cost)
        if cost == 0 then
            return true, state
        end
        if state and less(us, minus(state.next, max_wait)) then
            return false, state
        end
        return true, charged(rule.synced(state), cost)
    end

    if op == 'refund' then
        function rule.refund(state, cost, full_at)
            if digits(state.next) == '18446744073709551615' then
                return state
            end
            local full = natural(substring(full_at, 1, -4))
            local stored, earlier = undo(state.stored, double(cost), equal(full, state.next), double(full) - us)
            local next = minus(state.next, earlier)
            if less(next, us) then
                next = least(least(add(next, 2), us), state.next)
            end
            return { next = next, stored = stored }
        end
    end

    function rule.debit(state, cost)
        if cost == 0 then
            return state
        end
        local synced = rule.synced(state)
        local after = charged(synced, cost)
        after.next = least(after.next, greatest(synced.next, word(add(us, ahead))))
        return after
    end

    function rule.evictability(state)
        local full = truncated(math.ceil(max(max_stored - state.stored, 0) * cool * (1 + 1e-12)))
        return times(minus(add(add(state.next, full), 1), us), 1000)
    end

    function rule.migrate_state(old, state)
        if identity == old.identity then
            return state
        end
        local synced = old.synced(state)
        local stored = old.max_stored == 0 and 0 or synced.stored * max_stored / old.max_stored
        return { next = synced.next, stored = stored }
    end

    return rule
end
