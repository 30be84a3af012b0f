-- The one time of this call: that of Redis, to the microsecond, or the one given.

local op, clock = ARGV[1], ARGV[2]
local given = clock ~= ''
local seconds, nanos
if given then
    -- at least 10 digits
    seconds, nanos = tonumber(substring(clock, 1, -10)), tonumber(substring(clock, -9))
else
    local time = redis.call('TIME')
    seconds, nanos = tonumber(time[1]), tonumber(time[2]) * 1000
    clock = format('%.0f%09.0f', seconds, nanos)
end

local SECOND, DAY = 1e9, 86400e9

-- How long a key may owe beyond the times of its limit (algorithm::MAX_DEBT).
local MAX_DEBT = DAY
-- How far a clock may step back before what was written until then counts as nonsense.
local STEP_BACK = DAY

-- Nanoseconds since the epoch.
local function now()
    return natural(clock)
end

-- Nanoseconds until a time of at least 10 digits; 0 if it is over.
local function from_now(time)
    local s, n = natural(substring(time, 1, -10)), tonumber(substring(time, -9))
    if less(s, seconds) then
        return 0
    end
    return minus(add(times(minus(s, seconds), SECOND), n), nanos)
end

-- A key is kept a little longer than it matters, for replicas whose clocks are ahead; on a given clock for minutes.
local SPARE = given and 600000 or 1000

-- In milliseconds, of what matters this many nanoseconds longer.
local function lifetime(idle)
    return format('%.0f', math.min(double(divide_up(idle, 1e6)) + SPARE, 1e13))
end

-- A double as a gateway writes it; nothing else that Lua takes for a number.
local function decimal(text)
    local number = match(text, '^%d[%d.e+-]*$') and tonumber(text)
    return number and number < 1e300 and number or nil
end

-- `x as u64`
local function truncated(x)
    return x > 0 and word(whole(floor(x))) or 0
end

-- The rule of these parameters, for one bucket of one call; nil where they are none. Each family of rules, told by the
-- letter that its parameters begin with, is a block of this function: the functions of the others are never made.
local function made(parameters, argument, key)
    local family = substring(parameters, 1, 1)
