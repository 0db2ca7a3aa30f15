-- Reads jobs, the edges above and below some of them, and the jobs at their far ends, at one moment.
-- KEYS: the prefix of all keys.
-- ARGV: the number of ids, ids; of those to look above, ids; of those to look below, ids
-- Returns: ids; a list of each part (head, card, claim, started, progress, end, rest); edges as child, position, value.
local P = KEYS[1]
local at = 1
local function listed()
    local found, number = {}, tonumber(ARGV[at])
    for n = 1, number do found[n] = ARGV[at + n] end
    at = at + number + 1
    return found
end
local ids, above, below = listed(), listed(), listed()
local names, seen, edges = {}, {}, {}
local function add(id)
    if not seen[id] then
        seen[id] = true
        names[#names + 1] = id
    end
end
for _, list in ipairs({ ids, above, below }) do
    for _, id in ipairs(list) do add(id) end
end
local function edge(child, position, value)
    edges[#edges + 1] = child
    edges[#edges + 1] = position
    edges[#edges + 1] = value
end
for _, id in ipairs(above) do
    local found = redis.call('HGETALL', P .. 'up:' .. id)
    for n = 1, #found, 2 do
        edge(id, found[n], found[n + 1])
        add(string.match(found[n + 1], '^%S+ %S+ (.*)$'))
    end
end
for _, id in ipairs(below) do
    for _, place in ipairs(redis.call('SMEMBERS', P .. 'down:' .. id)) do
        local position, child = string.match(place, '^(%S+) (.*)$')
        local value = redis.call('HGET', P .. 'up:' .. child, position)
        if value then
            edge(child, position, value)
            add(child)
        end
    end
end
local answer = { names }
for _, part in ipairs({ 'job', 'card', 'claim', 'started', 'progress', 'end', 'rest' }) do
    local found = {}
    for first = 1, #names, 1000 do
        local values = redis.call('HMGET', P .. part, unpack(names, first, math.min(first + 999, #names)))
        for _, value in ipairs(values) do found[#found + 1] = value end
    end
    answer[#answer + 1] = found
end
answer[#answer + 1] = edges
return answer
