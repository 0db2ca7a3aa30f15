-- Heads of jobs, included by the scripts that write them. KEYS[1] is the prefix of all keys.
local P = KEYS[1]
local STATE, VERSION, CRASHES, LEASE, TOKEN, LINED, PRIORITY, SEQ = 1, 2, 3, 4, 5, 6, 7, 8
local REV, DUE, RUN_AT, EXPIRES, STOP, COLD, UNMET, QUEUE = 9, 10, 11, 12, 13, 14, 15, 16
local FIELDS = '^(%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (.*)$'

local function parse(text)
    return { string.match(text, FIELDS) }
end

local function put(h)
    h[REV] = h[REV] + 1
    return table.concat(h, ' ')
end

local function line(h)
    return P .. 'line:' .. h[PRIORITY] .. ':' .. h[QUEUE]
end

local function member(h, id)
    return string.rep('0', 16 - #h[SEQ]) .. h[SEQ] .. id
end

-- A full server refuses what needs memory, unless the script has written before. Heartbeats, claims and outcomes have to
-- get through, or jobs run again and nothing is ever pruned. There is no key of this name.
local function insist()
    redis.call('DEL', P)
end

-- A command with any number of arguments, in pieces that the stack of Lua can hold. `width` belong together.
local function many(command, key, values, width)
    local step = 1000 * width
    for first = 1, #values, step do
        redis.call(command, key, unpack(values, first, math.min(first + step - 1, #values)))
    end
end

-- The values of a hash for many ids, false for those that it does not have.
local function values(key, ids)
    if #ids <= 1000 then return #ids == 0 and {} or redis.call('HMGET', P .. key, unpack(ids)) end
    local found = {}
    for first = 1, #ids, 1000 do
        for _, value in ipairs(redis.call('HMGET', P .. key, unpack(ids, first, math.min(first + 999, #ids)))) do
            found[#found + 1] = value
        end
    end
    return found
end

-- By pcall: a number that is damaged, or overflows, must not stop a script in the middle. A zero is removed, or the names
-- of all queues that there ever were would stay.
local counted = {}
local function count(state, queue, by)
    local name = state .. ' ' .. queue
    counted[name] = (counted[name] or 0) + by
end

local function write_counts()
    for name, by in pairs(counted) do
        if by ~= 0 and redis.pcall('HINCRBY', P .. 'counts', name, by) == 0 then
            redis.call('HDEL', P .. 'counts', name)
        end
    end
end
