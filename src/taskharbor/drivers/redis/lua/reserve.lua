-- Claims due jobs, best first. Jobs whose leases lapsed are put in line before (D5, D11).
-- KEYS: the prefix of all keys.
-- ARGV: now, expiry, token, claim, limit, the number of queues believed to be paused, their names, the number of lines to
-- skip jobs of, name and number of each, then queue and share of each
-- Returns the names of the paused queues if they are others than those believed; or 1 and the lines to skip jobs of,
-- if more leases lapsed than one script should put in line, or it passed too many jobs: nothing was claimed then, ask
-- again. Else: false, then of the claimed jobs all ids, heads and cards, one list each; if any of them was stored more than
-- once, also the ends and rests.
-- include: head
local now, expiry, token, claim = tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4]
local limit, believed = tonumber(ARGV[5]), tonumber(ARGV[6])

local paused = redis.call('SMEMBERS', P .. 'paused')
local known = {}
for n = 1, believed do known[ARGV[6 + n]] = true end
local differs = #paused ~= believed
for _, queue in ipairs(paused) do differs = differs or not known[queue] end
if differs then return { paused } end

local lapsed = redis.call('ZRANGEBYSCORE', P .. 'leases', '-inf', ARGV[1], 'LIMIT', 0, 1000)
if #lapsed > 0 then
    insist()
    local heads = redis.call('HMGET', P .. 'job', unpack(lapsed))
    for n, id in ipairs(lapsed) do
        local h = parse(heads[n] or '')
        if h[LEASE] then -- else an entry that no job has
            h[LINED] = 1
            local place = h[CRASHES] == '0' and '-inf' or h[LEASE]
            redis.call('HSET', P .. 'job', id, put(h))
            redis.call('ZADD', line(h), place, member(h, id))
            redis.call('ZADD', P .. 'ranks:' .. h[QUEUE], h[PRIORITY], h[PRIORITY])
            redis.call('ZADD', P .. 'lined', h[LEASE], id)
        end
    end
    redis.call('ZREM', P .. 'leases', unpack(lapsed))
    if #lapsed == 1000 then return { 1, {} } end
end

local ids, heads, leases, lined, claims, again = {}, {}, {}, {}, {}, {}
local READY = '^ready (%d+) (%d+) %- %- 0 (%S+ %S+ (%S+) %S+ %S+ (%S+) 0 .*)$'
local held = ' ' .. expiry .. ' ' .. token .. ' 0 '
local passes = 5000 -- jobs to pass before other clients get their turn
local first = 8 + believed + 2 * ARGV[7 + believed]
local skipped = {} -- jobs at the front of each line that cannot be claimed
for n = 8 + believed, first - 1, 2 do skipped[ARGV[n]] = tonumber(ARGV[n + 1]) end

local function hold(id, head)
    ids[#ids + 1] = id
    heads[#heads + 1] = id
    heads[#heads + 1] = head
    leases[#leases + 1] = expiry
    leases[#leases + 1] = id
    claims[#claims + 1] = id
    claims[#claims + 1] = claim
end

-- Claim a job that is ready; return whether its time has not expired. Its revision stays: its version is new.
local function take(id, version, crashes, rest, rev, expires)
    if expires ~= '-' and tonumber(expires) <= now then return false end
    if version ~= '0' or rev ~= '1' then again[#again + 1] = id end
    hold(id, 'inflight ' .. version + 1 .. ' ' .. crashes .. held .. rest)
    return true
end

-- Claim a job again whose lease has lapsed, unless it expired, was asked to stop, or the clock has gone back since.
-- An entry that belongs to no job is not claimed: an error here would leave the claims before it without their heads.
local function reclaim(id, text)
    local h = parse(text)
    local free = h[LEASE] and h[LEASE] ~= '-' and tonumber(h[LEASE]) <= now
    if not free or h[STOP] ~= '0' or h[EXPIRES] ~= '-' and tonumber(h[EXPIRES]) <= now then return false end
    h[STATE], h[LINED], h[LEASE], h[TOKEN] = 'inflight', 0, expiry, token
    h[VERSION] = h[VERSION] + 1
    h[CRASHES] = h[CRASHES] + 1
    h[RUN_AT] = '-'
    lined[#lined + 1] = id
    again[#again + 1] = id
    hold(id, put(h))
    return true
end

-- Take up to `most` jobs of one line; those that expired or were asked to stop stay where they are.
local function take_from(name, queue, most)
    local taken, passed, fresh = 0, skipped[name] or 0, 0
    while taken < most and passes > 0 do
        local page = passed == 0 and math.min(most - taken, 1000) or 1000
        local found = redis.call('ZRANGEBYSCORE', name, '-inf', ARGV[1], 'LIMIT', passed, page)
        if #found == 0 then break end
        local names, members = {}, {}
        for n, each in ipairs(found) do names[n] = string.sub(each, 17) end
        for n, text in ipairs(redis.call('HMGET', P .. 'job', unpack(names))) do
            if taken + #members == most then break end
            text = text or ''
            local version, crashes, rest, rev, expires = string.match(text, READY)
            local is_taken
            if version then
                is_taken = take(names[n], version, crashes, rest, rev, expires)
                if is_taken then fresh = fresh + 1 end
            else
                is_taken = reclaim(names[n], text)
            end
            if is_taken then
                members[#members + 1] = found[n]
            else
                passed, passes = passed + 1, passes - 1
            end
        end
        if passed == 0 then
            redis.call('ZREMRANGEBYRANK', name, 0, #members - 1)
        elseif #members > 0 then
            redis.call('ZREM', name, unpack(members))
        end
        taken = taken + #members
    end
    skipped[name] = passed
    count('ready', queue, -fresh)
    count('inflight', queue, fresh)
    return taken
end

local function take_of(queue, most)
    local taken = 0
    if most > 0 then
        for _, priority in ipairs(redis.call('ZREVRANGE', P .. 'ranks:' .. queue, 0, -1)) do
            local name = P .. 'line:' .. priority .. ':' .. queue
            taken = taken + take_from(name, queue, most - taken)
            if redis.call('EXISTS', name) == 0 then redis.call('ZREM', P .. 'ranks:' .. queue, priority) end
            if taken >= most then break end
        end
    end
    return taken
end

for n = first, #ARGV, 2 do take_of(ARGV[n], tonumber(ARGV[n + 1])) end
for n = first, #ARGV, 2 do take_of(ARGV[n], limit - #ids) end

write_counts()
if #ids == 0 and passes <= 0 then
    local skips = {}
    for name, number in pairs(skipped) do
        skips[#skips + 1] = name
        skips[#skips + 1] = number
    end
    return { 1, skips }
end
if #ids == 0 then return { false, {}, {}, {} } end
many('HSET', P .. 'job', heads, 2)
many('HSET', P .. 'claim', claims, 2)
many('ZADD', P .. 'leases', leases, 2)
many('ZREM', P .. 'lined', lined, 1)
many('HDEL', P .. 'started', again, 1)
many('HDEL', P .. 'progress', again, 1)

local texts = {}
for n = 1, #ids do texts[n] = heads[2 * n] end
if #again == 0 then return { false, ids, texts, values('card', ids) } end
return { false, ids, texts, values('card', ids), values('end', ids), values('rest', ids) }
