-- Whole numbers of any size, exactly. A Lua number is a double and loses digits from 2^53 on.
--
-- A natural is a Lua number below SMALL, or else a list of limbs in base 10^7, the least first, the last one not 0.
-- Which of the two follows from its value, so naturals below SMALL compare with == and <. All that is done to small ones
-- is exact: a sum or product of theirs that is at least SMALL is at least that after rounding too, and then done with
-- limbs; in limbs nothing exceeds 10^14 + 2·10^7.

local floor, fmod, max = math.floor, math.fmod, math.max
local format, match, substring = string.format, string.match, string.sub

local BASE, SMALL = 1e7, 9e15

local function canonical(limbs, count)
    while count > 0 and limbs[count] == 0 do
        limbs[count] = nil
        count = count - 1
    end
    if count < 3 then
        return (limbs[1] or 0) + (limbs[2] or 0) * BASE
    end
    if count == 3 and limbs[3] < 90 then
        return limbs[1] + limbs[2] * BASE + limbs[3] * 1e14
    end
    return limbs
end

-- From decimal digits.
local function natural(digits)
    if #digits < 16 then
        return tonumber(digits)
    end
    local limbs, count = {}, 0
    for last = #digits, 1, -7 do
        count = count + 1
        limbs[count] = tonumber(substring(digits, max(last - 6, 1), last))
    end
    return canonical(limbs, count)
end

-- In decimal digits.
local function digits(n)
    if type(n) == 'number' then
        return format('%.0f', n)
    end
    local parts = { format('%d', n[#n]) }
    for i = #n - 1, 1, -1 do
        parts[#parts + 1] = format('%07d', n[i])
    end
    return table.concat(parts)
end

-- The limbs; those of a small number may end in zeros.
local function limbs_of(n)
    if type(n) == 'table' then
        return n
    end
    local low = fmod(n, BASE)
    local rest = (n - low) / BASE
    local middle = fmod(rest, BASE)
    return { low, middle, (rest - middle) / BASE }
end

local function less(a, b)
    if type(a) == 'number' then
        return type(b) == 'table' or a < b
    end
    if type(b) == 'number' then
        return false
    end
    if #a ~= #b then
        return #a < #b
    end
    for i = #a, 1, -1 do
        if a[i] ~= b[i] then
            return a[i] < b[i]
        end
    end
    return false
end

local function equal(a, b)
    return not less(a, b) and not less(b, a)
end

local function least(a, b)
    return less(b, a) and b or a
end

local function greatest(a, b)
    return less(a, b) and b or a
end

local function add(a, b)
    if type(a) == 'number' and type(b) == 'number' then
        local sum = a + b
        if sum < SMALL then
            return sum
        end
    end
    a, b = limbs_of(a), limbs_of(b)
    local sum, carried, count = {}, 0, max(#a, #b)
    for i = 1, count do
        local limb = (a[i] or 0) + (b[i] or 0) + carried
        carried = 0
        if limb >= BASE then
            limb, carried = limb - BASE, 1
        end
        sum[i] = limb
    end
    sum[count + 1] = carried
    return canonical(sum, count + 1)
end

-- The difference; 0 where b is larger.
local function minus(a, b)
    if type(a) == 'number' and type(b) == 'number' then
        return a > b and a - b or 0
    end
    if not less(b, a) then
        return 0
    end
    a, b = limbs_of(a), limbs_of(b)
    local difference, borrowed = {}, 0
    for i = 1, #a do
        local limb = a[i] - (b[i] or 0) - borrowed
        borrowed = 0
        if limb < 0 then
            limb, borrowed = limb + BASE, 1
        end
        difference[i] = limb
    end
    return canonical(difference, #a)
end

local function times(a, b)
    if type(a) == 'number' and type(b) == 'number' then
        local product = a * b
        if product < SMALL then
            return product
        end
    end
    a, b = limbs_of(a), limbs_of(b)
    local product, count = {}, #a + #b
    for i = 1, count do
        product[i] = 0
    end
    for i = 1, #a do
        local carried, factor = 0, a[i]
        for j = 1, #b do
            local limb = product[i + j - 1] + factor * b[j] + carried
            local low = fmod(limb, BASE)
            product[i + j - 1] = low
            carried = (limb - low) / BASE
        end
        product[i + #b] = carried
    end
    return canonical(product, count)
end

-- The nearest double.
local function double(n)
    return type(n) == 'number' and n or tonumber(digits(n))
end

-- A whole double as a natural.
local function whole(x)
    return x < SMALL and x or natural(format('%.0f', x))
end

-- Quotient and rest; b is not 0. A guess of the quotient is too low by more than three roundings can make it too high, so
-- what it leaves is not negative, and each guess takes off all but a part in 10^14.
local function divide(a, b)
    if type(a) == 'number' and type(b) == 'number' then
        local rest = fmod(a, b)
        return (a - rest) / b, rest
    end
    local quotient, divisor = 0, double(b)
    while not less(a, b) do
        local guess = whole(max(floor(double(a) / divisor * (1 - 1e-14)), 1))
        a = minus(a, times(guess, b))
        quotient = add(quotient, guess)
    end
    return quotient, a
end

local function divide_up(a, b)
    local quotient, rest = divide(a, b)
    return rest == 0 and quotient or add(quotient, 1)
end

-- At most 2^64 - 1, where the integers of the gateways end.
local function word(n)
    return type(n) == 'number' and n or least(n, { 9551615, 4407370, 184467 })
end

local function greatest_common_divisor(a, b)
    while b ~= 0 do
        local _, rest = divide(a, b)
        a, b = b, rest
    end
    return a
end

-- amount·numerator/denominator, rounded up, as units::scale_ceil has it: with less care where the product of the reduced
-- ratio is over 2^128 - 1.
local function scale_ceil(amount, numerator, denominator)
    local divisor = greatest(greatest_common_divisor(numerator, denominator), 1)
    numerator, denominator = divide(numerator, divisor), divide(denominator, divisor)
    local product = times(amount, numerator)
    if type(product) == 'table' and #product >= 6 and not less(product, natural('340282366920938463463374607431768211456')) then
        return times(divide_up(amount, denominator), numerator)
    end
    return divide_up(product, denominator)
end
