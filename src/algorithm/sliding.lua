-- Mirrors src/algorithm/sliding.rs and its log: sliding_log, sliding_counters.
--
-- Parameters: limit window length per count_denied min_gap; length/per is the length of a slot. Kept as a sorted set with
-- all scores 0, so that members are in the order of their bytes and no digit of a time gets lost: the member of a charge
-- is its time in 19 digits, a colon and its cost; no two have the same time. The last member is a tilde and the sum of
-- the costs; it stays alone where all charges were refunded. A log is valid under all parameters, so it carries none.

if family == 'l' then
    local limit, window, length, per, count_denied, min_gap = match(parameters, '^l ([1-9]%d*) ([1-9]%d*) ([1-9]%d*) ([1-9]%d*) ([01]) (%d+)$')
    if not limit then
        return nil
    end
    limit, window, length, per = natural(limit), natural(window), natural(length), natural(per)
    count_denied, min_gap = count_denied == '1', natural(min_gap)
    local now = now()
    local rule = { denials_count = count_denied }

    -- Log::MAX_COST, and the number of charges read at once.
    local MAX_COST, FEW = natural('4611686018427387904'), 64

    local function member(at, cost)
        local text = digits(at)
        return string.rep('0', 19 - #text) .. text .. ':' .. digits(cost)
    end

    local function split(text)
        local at, cost = match(text or '', '^(%d+):(%d+)$')
        if at and #at == 19 then
            return natural(at), natural(cost)
        end
    end

    -- Grain::beginning
    local function beginning()
        if per == 1 then
            local _, into = divide(now, length)
            return minus(now, into)
        end
        return divide_up(times(divide(times(now, per), length), length), per)
    end

    -- Whether the set has only the sum.
    local is_emptied

    -- Reads the log: its sum, the time of its newest charge, and the number and the sum of the charges that have left the
    -- window. Also returns whether the set was invalid, and whether it exists.
    local function read()
        local ends = redis.pcall('ZRANGE', key, -2, -1)
        if ends.err then
            return nil, true, true
        end
        is_emptied = #ends == 1 and ends[1] == '~0'
        if #ends == 0 or is_emptied then
            return nil, false, is_emptied
        end
        local total = match(ends[2] or '', '^~(%d+)$')
        local newest = split(ends[1])
        if not total or not newest or less(add(now, STEP_BACK), newest) then
            return nil, true, true
        end
        local log = { total = word(natural(total)), newest = newest, forget = 0, gone = 0 }
        if not less(now, window) then
            local first_kept = '(' .. substring(member(add(minus(now, window), 1), 0), 1, 19)
            for _, charge in ipairs(redis.call('ZRANGEBYLEX', key, '-', first_kept)) do
                local at, cost = split(charge)
                if not at then
                    return nil, true, true
                end
                log.forget, log.gone = log.forget + 1, add(log.gone, cost)
            end
        end
        return log, false, true
    end

    rule.load = read

    local function counting(log)
        return minus(log.total, log.gone)
    end

    local function gap_over(log)
        return min_gap ~= 0 and log.total ~= 0 and add(log.newest, min_gap) or 0
    end

    -- The time until cost, at most the limit, is admitted.
    local function wait(log, cost)
        local excess = minus(add(counting(log), cost), limit)
        local admitted_at, rank = gap_over(log), log.forget
        while excess ~= 0 do
            local charges = redis.call('ZRANGE', key, rank, rank + FEW - 1)
            for _, charge in ipairs(charges) do
                local at, its_cost = split(charge)
                if not at or excess == 0 then
                    break
                end
                excess = minus(excess, its_cost)
                admitted_at = greatest(admitted_at, add(at, window))
            end
            if #charges < FEW then
                break
            end
            rank = rank + FEW
        end
        return word(minus(admitted_at, now))
    end

    -- A change of the sorted set: how many of its first charges are removed, and which other members are removed and added.
    local function change(log, total)
        local sum = log and log.total or is_emptied and 0
        return { forget = log and log.forget or 0, gone = {}, come = {}, before = sum, total = total }
    end

    -- Log::push of a charge that fits.
    local function push(log, cost)
        local at, after = beginning(), change(log, cost)
        if not log then
            after.come[1] = member(at, cost)
            return after
        end
        after.total = add(counting(log), cost)
        local last = redis.call('ZRANGE', key, -2, -2)[1]
        local newest, its_cost = split(last)
        if not less(newest, at) then
            local sum = least(add(its_cost, cost), MAX_COST)
            after.total = add(minus(counting(log), its_cost), sum)
            after.gone[1] = last
            after.come[1] = member(newest, sum)
        else
            after.come[1] = member(at, cost)
        end
        return after
    end

    -- Sliding::log_beyond: Log::push of charges that may not fit, and Log::fold.
    local function beyond(log, cost)
        local charges = {}
        for _, charge in ipairs(log and redis.call('ZRANGE', key, log.forget, -2) or {}) do
            local at, its_cost = split(charge)
            if at then
                charges[#charges + 1] = { at = at, cost = its_cost, was = charge }
            end
        end
        local total, last, at = log and counting(log) or 0, charges[#charges], beginning()
        local function grow(charge, by)
            local sum = least(add(charge.cost, by), MAX_COST)
            total = add(minus(total, charge.cost), sum)
            charge.cost = sum
        end
        if not last or less(last.at, at) then
            last = { at = at, cost = 0 }
            charges[#charges + 1] = last
        end
        grow(last, cost)
        local first = 1
        while first < #charges and not less(minus(total, charges[first].cost), limit) do
            total = minus(total, charges[first].cost)
            grow(charges[first + 1], charges[first].cost)
            first = first + 1
        end
        local after = change(log, total)
        -- the retry time of the denied request, after it was logged
        local excess = minus(add(total, cost), limit)
        after.admitted_at = min_gap ~= 0 and add(last.at, min_gap) or 0
        for i = first, #charges do
            if excess ~= 0 then
                excess = minus(excess, charges[i].cost)
                after.admitted_at = greatest(after.admitted_at, add(charges[i].at, window))
            end
        end
        for i, charge in ipairs(charges) do
            local text = member(charge.at, charge.cost)
            if charge.was and (i < first or charge.was ~= text) then
                after.gone[#after.gone + 1] = charge.was
            end
            if i >= first and charge.was ~= text then
                after.come[#after.come + 1] = text
            end
        end
        return after
    end

    function rule.decide(log, cost)
        if cost == 0 then
            return true, log
        end
        if rule.fits(log, cost, 1) == 1 then
            return true, push(log, cost)
        end
        local fits = not less(limit, cost)
        if not count_denied then
            rule.retry = fits and digits(wait(log, cost)) or '-'
            return false, log
        end
        local after = beyond(log, least(cost, limit))
        rule.retry = fits and digits(word(minus(after.admitted_at, now))) or '-'
        return false, after
    end

    function rule.fits(log, cost, want)
        if cost == 0 then
            return want
        end
        if min_gap ~= 0 then
            want = least(want, 1)
        end
        if not log then
            return least(want, (divide(limit, cost)))
        end
        if less(now, gap_over(log)) then
            return 0
        end
        return least(want, (divide(minus(limit, counting(log)), cost)))
    end

    -- Log::take_back
    if op == 'refund' then
        function rule.refund(log, cost, full_at)
            local ends = natural(full_at)
            local time = substring(member(minus(ends, window), 0), 1, 19)
            local found = redis.call('ZRANGEBYLEX', key, '[' .. time .. ':', '(' .. time .. ';')[1]
            if equal(ends, word(add(ends, 1))) then
                -- the largest time stands for all later ones
                found = redis.call('ZRANGE', key, -2, -2)[1]
            end
            local at, its_cost = split(found)
            if not at or not equal(word(add(at, window)), ends) then
                return log
            end
            local left = minus(its_cost, cost)
            local after = change({ forget = 0, total = log.total }, add(minus(log.total, its_cost), left))
            after.gone[1] = found
            after.come[1] = left ~= 0 and member(at, left) or nil
            return after
        end
    end

    function rule.debit(log, cost, count)
        if cost == 0 then
            return log
        end
        return beyond(log, times(least(cost, limit), count or 1))
    end

    -- Carries out a change. The order of the commands never leaves the set empty, so that it always has a lifetime; a refund
    -- does not shorten that.
    function rule.store(after, healed)
        if healed then
            redis.call('DEL', key)
        end
        redis.call('ZADD', key, 0, '~' .. digits(after.total))
        if after.before and not equal(after.before, after.total) then
            redis.call('ZREM', key, '~' .. digits(after.before))
        end
        if after.forget > 0 then
            redis.call('ZREMRANGEBYRANK', key, 0, after.forget - 1)
        end
        for _, charge in ipairs(after.gone) do
            redis.call('ZREM', key, charge)
        end
        for _, charge in ipairs(after.come) do
            redis.call('ZADD', key, 0, charge)
        end
        if op ~= 'refund' then
            local newest = split(redis.call('ZRANGE', key, -2, -2)[1])
            redis.call('PEXPIRE', key, lifetime(minus(add(newest, window), now)))
        end
    end

    -- Reports the wait of a denied request, if it can ever pass; the headroom: remaining, until_more, until_full; and the
    -- tokens that count after the call. For a partial charge it is the wait of the next part.
    function rule.report(admitted, cost)
        local log = read() or { total = 0, newest = 0, forget = 0, gone = 0 }
        local remaining = less(now, gap_over(log)) and 0 or minus(limit, counting(log))
        local until_full = log.total ~= 0 and word(minus(add(log.newest, window), now)) or 0
        local until_more = until_full ~= 0 and wait(log, least(add(remaining, 1), limit)) or 0
        local retry = not admitted and rule.retry or '-'
        if not admitted and not rule.retry and not less(limit, cost) then
            retry = digits(wait(log, cost))
        end
        local stands = digits(remaining) .. ' ' .. digits(until_more) .. ' ' .. digits(until_full)
        return retry .. ' ' .. stands .. ' ' .. digits(counting(log))
    end

    return rule
end
