-- Writes outcomes of jobs that concern no others, all or none, each fenced by token and expiry (D7), with totals (D9).
-- KEYS: the prefix of all keys.
-- ARGV: now, minute, the number of totals, of each: name, runs, microseconds that they ran, and waited; then of all
-- outcomes that are alike: token, state after it, crashes, until when to keep it or when to run it again, the number of
-- jobs, and of each: id, number, end
-- Returns the places of the jobs that a step must look at, from 1; nothing was written then. An empty list: all done.
-- include: head
local now = tonumber(ARGV[1])
local HELD = '^inflight (%d+) %d+ (%d+) (%S+) 0 (%S+ (%d+) %S+ %S+ %S+ (%S+) 0 0 %S+ (.*))$'
local misfits, heads, ends, free, gone, ended, dead, back, ranks, expiring = {}, {}, {}, {}, {}, {}, {}, {}, {}, {}
local place, at = 0, 4 + 4 * ARGV[3]

local function put_back(text, id, crashes, time)
    local h = parse(text)
    h[STATE], h[CRASHES], h[LEASE], h[TOKEN], h[DUE], h[RUN_AT] = 'ready', crashes, '-', '-', time, time
    local name = line(h)
    back[name] = back[name] or {}
    table.insert(back[name], time)
    table.insert(back[name], member(h, id))
    ranks[h[QUEUE]] = ranks[h[QUEUE]] or {}
    ranks[h[QUEUE]][h[PRIORITY]] = true
    gone[#gone + 1] = id
    return put(h)
end

while at <= #ARGV do
    local token, state, crashes, time, jobs = unpack(ARGV, at, at + 4)
    local first, ids = at + 5, {}
    at = first + 3 * jobs
    for n = first, at - 1, 3 do ids[#ids + 1] = ARGV[n] end
    local after = ' ' .. crashes .. ' - - 0 '
    local texts = values('job', ids)
    for n, id in ipairs(ids) do
        place = place + 1
        local version, lease, holder, rest, seq, expires, queue
        if texts[n] then version, lease, holder, rest, seq, expires, queue = string.match(texts[n], HELD) end
        if version and tonumber(lease) > now and holder == token and seq == ARGV[first + 3 * n - 2] then
            heads[#heads + 1] = id
            if state == 'ready' then
                heads[#heads + 1] = put_back(texts[n], id, crashes, time)
            else
                heads[#heads + 1] = state .. ' ' .. version .. after .. rest
                ended[#ended + 1] = time
                ended[#ended + 1] = id
                if expires ~= '-' then expiring[#expiring + 1] = id end
                if state == 'dlq' then
                    dead[#dead + 1] = seq
                    dead[#dead + 1] = id
                end
            end
            ends[#ends + 1] = id
            ends[#ends + 1] = ARGV[first + 3 * n - 1]
            free[#free + 1] = id
            count('inflight', queue, -1)
            count(state, queue, 1)
        else
            misfits[#misfits + 1] = place
        end
    end
end
if #misfits > 0 then return misfits end

insist()
many('HSET', P .. 'job', heads, 2)
many('HSET', P .. 'end', ends, 2)
many('ZREM', P .. 'leases', free, 1)
many('HDEL', P .. 'started', free, 1)
many('HDEL', P .. 'progress', gone, 1)
many('ZREM', P .. 'expiring', expiring, 1)
many('ZADD', P .. 'ended', ended, 2)
many('ZADD', P .. 'dead', dead, 2)
for name, there in pairs(back) do many('ZADD', name, there, 2) end
for queue, priorities in pairs(ranks) do
    for priority in pairs(priorities) do redis.call('ZADD', P .. 'ranks:' .. queue, priority, priority) end
end
write_counts()
for n = 1, tonumber(ARGV[3]) do
    local name, runs, ran, waited = unpack(ARGV, 4 * n, 4 * n + 3)
    redis.pcall('HINCRBY', P .. 'tally:' .. ARGV[2], 'count ' .. name, runs)
    redis.pcall('HINCRBY', P .. 'tally:' .. ARGV[2], 'ran ' .. name, ran)
    redis.pcall('HINCRBY', P .. 'tally:' .. ARGV[2], 'waited ' .. name, waited)
    redis.call('ZADD', P .. 'minutes', ARGV[2], ARGV[2])
end
if next(back) then redis.call('PUBLISH', P .. 'wake', '') end
if #ended > 0 then redis.call('PUBLISH', P .. 'ends', '') end
return misfits
