-- Renews leases, fenced by token and expiry (D6).
-- KEYS: the prefix of all keys.
-- ARGV: now, expiry, then of each report: id, token, number, started_at or '', progress or ''
-- Returns of each: its new expiry and the stop request (0, 1 cancel, 2 dead letter), or false if it is refused.
-- include: head
local now, answers = tonumber(ARGV[1]), {}
insist()
for place = 3, #ARGV, 5 do
    local id, token, seq, started, progress = unpack(ARGV, place, place + 4)
    local text = redis.call('HGET', P .. 'job', id)
    local h = text and parse(text)
    local answer = false
    if h and h[STATE] == 'inflight' and tonumber(h[LEASE]) > now and h[TOKEN] == token and h[SEQ] == seq then
        if tonumber(h[LEASE]) < tonumber(ARGV[2]) then h[LEASE] = ARGV[2] end
        if h[LINED] == '1' then -- lapsed by a clock that has gone back since
            redis.call('ZREM', line(h), member(h, id))
            if redis.call('EXISTS', line(h)) == 0 then redis.call('ZREM', P .. 'ranks:' .. h[QUEUE], h[PRIORITY]) end
            redis.call('ZREM', P .. 'lined', id)
            h[LINED] = 0
        end
        redis.call('HSET', P .. 'job', id, put(h))
        redis.call('ZADD', P .. 'leases', h[LEASE], id)
        if started ~= '' then redis.call('HSET', P .. 'started', id, started) end
        if progress ~= '' then redis.call('HSET', P .. 'progress', id, progress) end
        answer = { h[LEASE], h[STOP] }
    end
    answers[#answers + 1] = answer
end
return answers
