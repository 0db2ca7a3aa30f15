-- Stores groups of plain jobs, each all or none: no keys, no dependencies, no workflow.
-- KEYS: the prefix of all keys.
-- ARGV: groups, then of each: the number of runs of jobs that are alike, and of each run: its jobs, queue, priority,
-- due, run_at or '-', expires_at or '-', and of each job: id, card
-- Returns of each group: the id that is taken, or false.
-- include: head
local answers, heads, cards, all, lines, ranks, expiring = {}, {}, {}, {}, {}, {}, {}
local at, stored = 2, {}

-- Queue up the writes of a run of jobs that begins at this place of ARGV; `seq` is the number of the last job before.
local function store(place, seq)
    local jobs, queue, priority, due, run_at, expires = unpack(ARGV, place, place + 5)
    local before = 'ready 0 0 - - 0 ' .. priority .. ' '
    local after = table.concat({ ' 1', due, run_at, expires, '0 0 0', queue }, ' ')
    local name = P .. 'line:' .. priority .. ':' .. queue
    lines[name] = lines[name] or {}
    ranks[queue] = ranks[queue] or {}
    ranks[queue][priority] = true
    local there = lines[name]
    for n = 1, tonumber(jobs) do
        local id = ARGV[place + 4 + 2 * n]
        local padded = string.format('%016.0f', seq + n)
        local number = string.match(padded, '[1-9]%d*')
        stored[id] = true
        heads[#heads + 1] = id
        heads[#heads + 1] = before .. number .. after
        cards[#cards + 1] = id
        cards[#cards + 1] = ARGV[place + 5 + 2 * n]
        all[#all + 1] = number
        all[#all + 1] = id
        there[#there + 1] = due
        there[#there + 1] = padded .. id
        if expires ~= '-' then
            expiring[#expiring + 1] = expires
            expiring[#expiring + 1] = id
        end
    end
    count('ready', queue, tonumber(jobs))
end

for group = 1, tonumber(ARGV[1]) do
    local runs, ids = {}, {}
    local first = at + 1
    for n = 1, tonumber(ARGV[at]) do
        runs[n] = first
        local last = first + 5 + 2 * ARGV[first]
        for place = first + 6, last, 2 do ids[#ids + 1] = ARGV[place] end
        first = last + 1
    end
    at = first
    local taken = false
    for n, found in ipairs(values('job', ids)) do
        if found or stored[ids[n]] then
            taken = ids[n]
            break
        end
    end
    answers[group] = taken
    if not taken then
        local seq = redis.call('INCRBY', P .. 'seq', #ids) - #ids
        for _, place in ipairs(runs) do
            store(place, seq)
            seq = seq + ARGV[place]
        end
    end
end
if #heads > 0 then
    many('HSET', P .. 'job', heads, 2)
    many('HSET', P .. 'card', cards, 2)
    many('ZADD', P .. 'all', all, 2)
    many('ZADD', P .. 'expiring', expiring, 2)
    for name, there in pairs(lines) do many('ZADD', name, there, 2) end
    for queue, priorities in pairs(ranks) do
        for priority in pairs(priorities) do redis.call('ZADD', P .. 'ranks:' .. queue, priority, priority) end
    end
    write_counts()
    redis.call('PUBLISH', P .. 'wake', '')
end
return answers
