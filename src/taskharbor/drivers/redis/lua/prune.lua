-- Finds jobs to prune: kept long enough (X8), and needed by no dependant (K3), as far as can be seen here: a step decides.
-- KEYS: the prefix of all keys.
-- ARGV: now, how many entries of `ended` to pass, the most jobs to find, the most entries and dependants to look at.
-- Changes nothing.
-- Returns how many of the entries it has looked at stay because of a dependant, 1 if there may be more entries behind
-- them, and the ids of the other entries.
local P = KEYS[1]
local now, passed, most, left = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

-- Whether a dependant is not done: a dead one may be replayed and reads the results again.
local function is_needed(id)
    local places = redis.call('SMEMBERS', P .. 'down:' .. id)
    left = left - #places
    for _, place in ipairs(places) do
        local position, child = string.match(place, '^(%S+) (.*)$')
        local edge = redis.call('HGET', P .. 'up:' .. child, position)
        if edge then
            local head = redis.call('HGET', P .. 'job', child)
            if not string.find(edge, '^%S+ 1 ') or not head or not string.find(head, '^done ') then return true end
        end
    end
    return false
end

local ids, needed = {}, 0
while #ids < most and left > 0 do
    local found = redis.call('ZRANGEBYSCORE', P .. 'ended', '-inf', now, 'LIMIT', passed, math.min(most, left))
    if #found == 0 then return { needed, 0, ids } end
    for _, id in ipairs(found) do
        if #ids == most then break end
        passed, left = passed + 1, left - 1
        if is_needed(id) then
            needed = needed + 1
        else
            ids[#ids + 1] = id
        end
    end
end
return { needed, 1, ids }
