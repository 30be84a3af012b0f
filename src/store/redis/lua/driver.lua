    return nil
end

-- Charges all buckets of one request, or none.
--
-- KEYS: a bucket each. ARGV: what to do; the time in nanoseconds, empty for that of Redis; how many times to charge; and
-- for each bucket its parameters, what the limit enforces, the cost, and one more argument that depends on what is done.
-- The reply: the time, how many times was charged, and for each bucket a number (1: this bucket admits; 2: what was kept
-- made no sense; 4: nothing was kept that makes sense) and its state as it was before a charge, after any other change.
-- Where a bucket denies and its state stays under other parameters, a semicolon and the time until it is fresh follow.
--
-- Kept are a rule's parameters and its state, with a semicolon between them. Another one at the end says that tokens came
-- back, which leaves the key there for as long as it was going to be: so a key that is gone before its time was forgotten.
--
-- The last argument of a debit may begin with the time since which the charges were made that it debits, and that of a
-- charge, debit or refund may end in a semicolon and the state that a gateway remembers. It is merged with the kept state,
-- in case Redis has lost that or some of its charges; but not where tokens came back, since a state from before that would
-- take them again.
--
-- A state that stays under other parameters (Core::keeps_old_parameters) is kept with those, and debited under them.

local function has(bucket, flag)
    return string.find(bucket.enforcement, flag, 1, true)
end

-- The state that is kept at the bucket's key, under its parameters.
local function load(bucket)
    local rule, key = bucket.rule, bucket.key
    if rule.load then
        local state, healed
        state, healed, bucket.exists = rule.load()
        return state, healed
    end
    local kept = redis.pcall('GET', key)
    if not kept then
        return nil
    end
    bucket.exists = true
    if type(kept) == 'table' or #kept > 512 then
        return nil, true
    end
    local parameters, text, outlives = match(kept, '^([^;]*);([^;]*)(;?)$')
    bucket.outlives = outlives == ';'
    if text == '' and bucket.outlives then
        return nil
    end
    if parameters == bucket.parameters then
        local state, healed = rule.read(text)
        rule.is_kept = not healed
        bucket.text = state and not healed and text or nil
        return state, healed
    end
    local old = parameters and substring(parameters, 1, 1) == substring(bucket.parameters, 1, 1)
        and made(parameters, bucket.argument, key)
    if not old then
        return nil, true
    end
    local state, healed = old.read(text)
    if state and rule.keeps_old_parameters and rule.keeps_old_parameters(old, state, 0) then
        bucket.keeper = { rule = old, parameters = parameters, state = state }
    else
        bucket.changed = true
    end
    return state and rule.migrate_state(old, state), healed
end

local function put(bucket, state)
    local rule, key = bucket.rule, bucket.key
    if rule.store then
        if state ~= bucket.state then
            rule.store(state, bucket.healed)
        end
    elseif state == bucket.state and not bucket.changed and not bucket.healed then
        return
    else
        -- a state that lacked charges may lack more of them, which other gateways remember
        local given_back = bucket.outlives or op == 'refund' and bucket.state ~= nil and not bucket.lacked
        local left = given_back and redis.call('PTTL', key) or 0
        local life = state ~= nil and lifetime(add(rule.evictability(state), rule.lingers or 0)) or '0'
        local outlives = tonumber(life) < left
        if state ~= nil or outlives then
            -- a window's state of before tokens came back is no more than some state after it: its mark stays
            local marked = outlives or given_back and rule.is_window
            local kept = bucket.parameters .. ';' .. (state ~= nil and rule.write(state) or '')
            redis.call('SET', key, marked and kept .. ';' or kept, 'PX', outlives and format('%.0f', left) or life)
        elseif bucket.exists then
            redis.call('DEL', key)
        end
    end
end

-- Makes the bucket one of the parameters that keep its state although cost is taken of it, if there are such.
local function to_keeper(bucket, cost)
    local keeper = bucket.keeper
    if keeper and bucket.rule.keeps_old_parameters(keeper.rule, keeper.state, cost) then
        bucket.rule, bucket.parameters, bucket.state = keeper.rule, keeper.parameters, keeper.state
        return keeper.rule
    end
end

-- Writes the state after cost was taken.
local function put_charged(bucket, after, cost)
    local keeper = to_keeper(bucket, cost)
    if keeper then
        after = keeper.debit(bucket.state, cost)
    end
    put(bucket, after)
end

local function text(bucket, state)
    if state == nil then
        return ''
    end
    if state == bucket.state and bucket.text then
        return bucket.text
    end
    return bucket.rule.write and bucket.rule.write(state) or digits(state)
end

-- How many times the cost fits, at most so many times; and the state after them. Where nothing is taken, as often as
-- wanted if it fits once.
local function charged(bucket, count)
    local rule, state, cost = bucket.rule, bucket.state, bucket.cost
    if not has(bucket, 't') then
        return rule.decide(state, cost) and count or 0, state
    end
    if rule.fits then
        local fits = rule.fits(state, cost, count)
        if fits ~= 0 then
            local _, after = rule.decide(state, times(cost, fits))
            return fits, after
        end
        return 0, state
    end
    if rule.divisible then
        local low, high = 0, count
        while less(low, high) do
            local middle = divide_up(add(low, high), 2)
            if rule.decide(state, times(cost, middle)) then
                low = middle
            else
                high = minus(middle, 1)
            end
        end
        local _, after = rule.decide(state, times(cost, low))
        return low, after
    end
    local fits = 0
    while less(fits, count) do
        local admitted, after = rule.decide(state, cost)
        if not admitted then
            break
        end
        fits, state = fits + 1, after
    end
    return fits, state
end

local buckets = {}
for i, key in ipairs(KEYS) do
    local at = 4 * i
    local argument = ARGV[at + 3]
    local bucket = {
        key = key,
        parameters = ARGV[at],
        enforcement = ARGV[at + 1],
        cost = natural(ARGV[at + 2]),
        argument = argument,
    }
    bucket.rule = made(bucket.parameters, argument, key)
    if not bucket.rule then
        return redis.error_reply('ERR tollgate: parameters of bucket ' .. i .. ' are not known here')
    end
    bucket.state, bucket.healed = load(bucket)
    local may_lack = bucket.rule.merge and not bucket.outlives and not bucket.keeper
    local remembered = may_lack and match(argument, ';(.+)$')
    local repair = remembered and bucket.rule.read(remembered)
    local merged = repair and bucket.rule.merge(bucket.state, repair)
    if merged and merged ~= bucket.state then
        bucket.state, bucket.text, bucket.changed, bucket.exists = merged, nil, true, true
        bucket.lacked = true
    end
    buckets[i] = bucket
end

-- What is told of a bucket that denies: where its state stays under other parameters, also when it is fresh under those.
local function with_freshness(bucket, told)
    local keeper = bucket.keeper
    if keeper and not has(bucket, 'd') then
        return told .. ';' .. digits(word(keeper.rule.evictability(keeper.state)))
    end
    return told
end

local reply = { clock, '0' }

local function answer(bucket, admitted, told)
    local lost = not bucket.exists or bucket.healed and bucket.state == nil
    reply[#reply + 1] = (admitted and 1 or 0) + (bucket.healed and 2 or 0) + (lost and 4 or 0)
    reply[#reply + 1] = told
end

if op == 'charge' then
    local passes = true
    for _, bucket in ipairs(buckets) do
        bucket.admits, bucket.after = bucket.rule.decide(bucket.state, bucket.cost)
        passes = passes and (bucket.admits or not has(bucket, 'b'))
    end
    for _, bucket in ipairs(buckets) do
        local rule, before = bucket.rule, bucket.state
        local takes = has(bucket, 't')
        -- the trace of the rule's own denial
        local denial_kept = not bucket.admits and (rule.denials_count or not has(bucket, 'd'))
        local told = not rule.report and text(bucket, before)
        if takes and rule.take then
            if passes and bucket.admits and bucket.cost ~= 0 then
                rule.take(before, bucket.cost, nil, bucket.healed)
            end
        elseif takes and (passes and bucket.admits or denial_kept) then
            put_charged(bucket, bucket.after, bucket.admits and bucket.cost or 0)
        elseif takes and has(bucket, 'd') then
            put_charged(bucket, rule.debit(before, bucket.cost), bucket.cost)
            -- the wait of the denied request is reported from the log with the debit
            rule.retry = nil
        elseif takes and not rule.store and (bucket.changed or bucket.healed) then
            put_charged(bucket, before, 0)
        end
        told = told or rule.report(bucket.admits, bucket.cost)
        answer(bucket, bucket.admits, bucket.admits and told or with_freshness(bucket, told))
    end
    reply[2] = passes and '1' or '0'
elseif op == 'partial' then
    local want = natural(ARGV[3])
    local granted = want
    for _, bucket in ipairs(buckets) do
        bucket.fits, bucket.after = charged(bucket, want)
        if has(bucket, 'b') then
            granted = least(granted, bucket.fits)
        end
    end
    for _, bucket in ipairs(buckets) do
        local rule, before = bucket.rule, bucket.state
        local count, after = bucket.fits, bucket.after
        if less(granted, count) then
            count, after = charged(bucket, granted)
        end
        local told = not rule.report and text(bucket, before)
        if has(bucket, 't') then
            if rule.take then
                if count ~= 0 and bucket.cost ~= 0 then
                    rule.take(before, bucket.cost, count, bucket.healed)
                end
            elseif has(bucket, 'd') and less(count, want) then
                local taken, owed = times(bucket.cost, want), times(bucket.cost, minus(want, count))
                -- a log is changed once, for the charged and the denied requests together
                put_charged(bucket, rule.store and rule.debit(before, bucket.cost, want) or rule.debit(after, owed), taken)
            else
                if not rule.store and less(count, want) and equal(count, bucket.fits) then
                    -- the trace of the rule's own denial, as in a call of its own
                    after = select(2, rule.decide(after, bucket.cost))
                end
                put_charged(bucket, after, times(bucket.cost, count))
            end
        end
        local admits = equal(bucket.fits, want)
        told = told or rule.report(admits, bucket.cost)
        answer(bucket, admits, bucket.fits == 0 and with_freshness(bucket, told) or told)
    end
    reply[2] = digits(granted)
elseif op == 'debit' or op == 'refund' or op == 'complete' or op == 'renew' then
    for _, bucket in ipairs(buckets) do
        local asked = bucket.rule
        local keeper = to_keeper(bucket, op == 'debit' and bucket.cost or 0)
        local rule, before, cost, after = bucket.rule, bucket.state, bucket.cost, bucket.state
        if op == 'debit' and rule.debit then
            after = rule.debit(before, cost)
        elseif op == 'renew' and rule.renew then
            after = rule.renew(before, cost, bucket.healed)
        elseif op ~= 'debit' and op ~= 'renew' and rule.release then
            after = rule.release(before, cost)
        elseif op == 'refund' then
            after = before ~= nil and rule.refund(before, cost, match(bucket.argument, '^[^;]*')) or nil
            -- a state that time has made good is not kept either
            bucket.changed = bucket.changed or before == nil
        end
        if not rule.take then
            put(bucket, after)
        end
        if keeper then
            bucket.rule, after = asked, after and asked.migrate_state(keeper, after)
        end
        answer(bucket, false, rule.report and rule.report(true, 0) or text(bucket, after))
    end
else
    return redis.error_reply('ERR tollgate: nothing of that name is done here')
end

return reply
