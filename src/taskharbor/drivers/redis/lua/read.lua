-- Reads at one moment. ARGV of each command: the number of its words, and the words; the key is without the prefix.
-- KEYS: the prefix of all keys.
-- Returns the reply to each, false for none. Changes nothing.
local P = KEYS[1]
local at, answers = 1, {}
while at <= #ARGV do
    local number = tonumber(ARGV[at])
    answers[#answers + 1] = redis.call(ARGV[at + 1], P .. ARGV[at + 2], unpack(ARGV, at + 3, at + number))
    at = at + number + 1
end
return answers
