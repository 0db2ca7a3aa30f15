-- Counts the jobs of every queue by the state to show, at one moment (T2).
-- KEYS: the prefix of all keys.
-- ARGV: now. Changes nothing. Passes entries that no job has: a damaged index must not hide what a repair is needed for.
-- Returns of each queue: its name, 1 if it is paused, since when its oldest job is due or false, then the numbers of
-- scheduled, ready, waiting, claimed, running, lapsed, done, dead and cancelled jobs.
-- include: head
local now = tonumber(ARGV[1])
local queues, names = {}, {}
local function queue_of(name)
    if not queues[name] then
        queues[name] = { paused = 0, claimed = 0, running = 0, lapsed = 0, lined = 0 }
        names[#names + 1] = name
    end
    return queues[name]
end
local function older(queue, due)
    if not queue.oldest or tonumber(due) < tonumber(queue.oldest) then queue.oldest = due end
end

local stored = redis.call('HGETALL', P .. 'counts')
for n = 1, #stored, 2 do
    local state, name = string.match(stored[n], '^(%S+) (.*)$')
    if name and stored[n + 1] ~= '0' then queue_of(name)[state] = tonumber(stored[n + 1]) end
end
for _, name in ipairs(redis.call('SMEMBERS', P .. 'paused')) do queue_of(name).paused = 1 end

for _, key in ipairs({ 'leases', 'lined' }) do
    local ids = redis.call('ZRANGE', P .. key, 0, -1)
    for first = 1, #ids, 1000 do
        local last = math.min(first + 999, #ids)
        local heads = redis.call('HMGET', P .. 'job', unpack(ids, first, last))
        local started = redis.call('HMGET', P .. 'started', unpack(ids, first, last))
        for n, text in ipairs(heads) do
            local h = parse(text or '')
            local lease = tonumber(h[LEASE] or '')
            if lease then
                local queue = queue_of(h[QUEUE])
                local is_over = lease <= now
                local state = is_over and 'lapsed' or started[n] and 'running' or 'claimed'
                queue[state] = queue[state] + 1
                if is_over then older(queue, h[LEASE]) end
                -- Clocks may go back after a lease has lapsed.
                if h[LINED] == '1' and (is_over or h[CRASHES] == '0') then queue.lined = queue.lined + 1 end
            end
        end
    end
end

local answers = {}
for n, name in ipairs(names) do
    local queue, due = queues[name], 0
    for _, priority in ipairs(redis.call('ZRANGE', P .. 'ranks:' .. name, 0, -1)) do
        local row = P .. 'line:' .. priority .. ':' .. name
        due = due + redis.call('ZCOUNT', row, '-inf', ARGV[1])
        local passed, found = 0, nil
        repeat -- past lapsed jobs
            local members = redis.call('ZRANGEBYSCORE', row, '-inf', ARGV[1], 'LIMIT', passed, 100)
            for _, each in ipairs(members) do
                local h = parse(redis.call('HGET', P .. 'job', string.sub(each, 17)) or '')
                if h[STATE] == 'ready' then
                    found = h[DUE]
                    break
                end
            end
            passed = passed + #members
        until found or #members == 0
        if found then older(queue, found) end
    end
    local ready = due - queue.lined
    answers[n] = {
        name, queue.paused, queue.oldest or false, (queue.ready or 0) - ready, ready, queue.waiting or 0,
        queue.claimed, queue.running, queue.lapsed, queue.done or 0, queue.dlq or 0, queue.cancelled or 0,
    }
end
return answers
