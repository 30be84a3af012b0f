-- Mirrors src/algorithm/concurrency.rs, with slots as leases: the slots of a gateway that died come back.
--
-- Parameters: limit lifetime, the latter in milliseconds. Kept as a sorted set whose scores are the milliseconds at which
-- slots expire: the member of a slot is its name, which the gateway chose, a colon and its cost. The last member, with the
-- score infinity, is a tilde and the sum of the costs. The state passed between functions is the cost in flight; the
-- name of a slot comes as the argument beside the cost.

if family == 'z' then
    local limit, lifetime_ms = match(parameters, '^z ([1-9]%d*) ([1-9]%d*)$')
    if not limit then
        return nil
    end
    local name = argument
    limit, lifetime_ms = natural(limit), tonumber(lifetime_ms)
    local rule = {}
    local now_ms = seconds * 1e3 + floor(nanos / 1e6)
    local lapsed, lapsed_cost, total = {}, 0, nil

    local function split(slot)
        return match(slot or '', '^(.*):(%d+)$')
    end

    -- Adds the slots to the expired ones; false if one of them is no valid slot.
    local function lapse(slots)
        for _, slot in ipairs(slots) do
            local _, cost = split(slot)
            if not cost then
                return false
            end
            lapsed[#lapsed + 1] = slot
            lapsed_cost = add(lapsed_cost, natural(cost))
        end
        return true
    end

    function rule.load()
        local ends = redis.pcall('ZRANGE', key, -2, -1, 'WITHSCORES')
        if ends.err then
            return nil, true
        end
        if #ends == 0 then
            return nil
        end
        total = match(ends[3] or '', '^~(%d+)$')
        if not total or ends[4] ~= 'inf' then
            total = nil
            return nil, true
        end
        total = natural(total)
        local good = lapse(redis.call('ZRANGEBYSCORE', key, '-inf', format('%.0f', now_ms)))
        -- a slot that expires later than any slot can
        local furthest, healed = now_ms + lifetime_ms + STEP_BACK / 1e6, false
        if tonumber(ends[2]) > furthest then
            good = lapse(redis.call('ZRANGEBYSCORE', key, format('(%.0f', furthest), '(+inf')) and good
            healed = true
        end
        if not good then
            lapsed, total = {}, nil
            return nil, true
        end
        local in_flight = minus(total, lapsed_cost)
        return in_flight ~= 0 and in_flight or nil, healed
    end

    local function less_by(in_flight, cost)
        in_flight = minus(in_flight, cost)
        return in_flight ~= 0 and in_flight or nil
    end

    function rule.decide(in_flight, cost)
        if cost == 0 then
            return true, in_flight
        end
        local after = add(in_flight or 0, cost)
        if less(limit, after) then
            return false, in_flight
        end
        return true, after
    end

    if op == 'partial' then
        function rule.fits(in_flight, cost, want)
            if cost == 0 then
                return want
            end
            return least(want, (divide(minus(limit, in_flight or 0), cost)))
        end
    end

    -- Writes the new sum, and removes all expired slots.
    local function settle(after)
        for _, slot in ipairs(lapsed) do
            redis.call('ZREM', key, slot)
        end
        if not after then
            redis.call('DEL', key)
            return
        end
        redis.call('ZADD', key, '+inf', '~' .. digits(after))
        if total and not equal(total, after) then
            redis.call('ZREM', key, '~' .. digits(total))
        end
        redis.call('PEXPIRE', key, lifetime(lifetime_ms * 1e6))
    end

    -- Adds the slot of this name and cost, or count slots whose names are this one and a number; an existing slot is
    -- renewed for another lifetime. Returns the cost of the new slots.
    local function hold(cost, count)
        local lapses, held = format('%.0f', now_ms + lifetime_ms), 0
        for i = 1, count or 1 do
            local slot = (count and name .. '/' .. i or name) .. ':' .. digits(cost)
            held = held + redis.call('ZADD', key, lapses, slot)
        end
        return times(cost, held)
    end

    -- Charges cost, or count times cost.
    function rule.take(in_flight, cost, count, healed)
        if healed and not total then
            redis.call('DEL', key)
        end
        settle(add(in_flight or 0, hold(cost, count)))
    end

    -- A slot that has expired while its request runs is held again.
    if op == 'renew' then
        function rule.renew(in_flight, cost, healed)
            for i = #lapsed, 1, -1 do
                if lapsed[i] == name .. ':' .. digits(cost) then
                    table.remove(lapsed, i)
                    in_flight = add(in_flight or 0, cost)
                end
            end
            if healed and not total then
                redis.call('DEL', key)
            end
            in_flight = add(in_flight or 0, hold(cost))
            settle(in_flight)
            return in_flight
        end
    end

    -- Releases the slot of a request that has ended or was refunded.
    function rule.release(in_flight, cost)
        local slot = name .. ':' .. digits(cost)
        for _, gone in ipairs(lapsed) do
            if gone == slot then
                return in_flight
            end
        end
        if total and redis.call('ZREM', key, slot) == 1 then
            in_flight = less_by(in_flight or 0, cost)
            settle(in_flight)
        end
        return in_flight
    end

    return rule
end
