-- Applies a change set if everything that it rests on is as it was read; all or none.
-- KEYS: the prefix of all keys.
-- ARGV: the number of comparisons, of each: command (HGET, SISMEMBER, ZSCORE; GET and ZCARD, without a member), key,
-- member, '1' and the value, or '0' and ''; then of each write: the number of its words, and the words. Keys are
-- without the prefix. A line that becomes empty is removed from the ranks of its queue.
-- Returns 1, or 0 if something has changed meanwhile.
local P = KEYS[1]
local at = 2
for _ = 1, tonumber(ARGV[1]) do
    local command, key, name, is_there, value = unpack(ARGV, at, at + 4)
    local found
    if command == 'ZCARD' or command == 'GET' then
        found = redis.call(command, P .. key)
    else
        found = redis.call(command, P .. key, name)
    end
    if type(found) == 'number' then found = tostring(found) end
    if is_there == '1' and found ~= value or is_there == '0' and found then return 0 end
    at = at + 5
end
while at <= #ARGV do
    local number = tonumber(ARGV[at])
    local command, key = ARGV[at + 1], P .. ARGV[at + 2]
    -- A number that is damaged, or overflows, must not stop this in the middle.
    local call = command == 'HINCRBY' and redis.pcall or redis.call
    if call(command, key, unpack(ARGV, at + 3, at + number)) == 0 and command == 'HINCRBY' then
        redis.call('HDEL', key, ARGV[at + 3]) -- or the names of all queues that there ever were would stay
    end
    if command == 'ZREM' then
        local priority, queue = string.match(ARGV[at + 2], '^line:([^:]*):(.*)$')
        if priority and redis.call('EXISTS', key) == 0 then redis.call('ZREM', P .. 'ranks:' .. queue, priority) end
    end
    at = at + number + 1
end
return 1
