-- One command. KEYS: the prefix of all keys. ARGV: its words, with the whole key. Returns its reply.
return redis.call(unpack(ARGV))
