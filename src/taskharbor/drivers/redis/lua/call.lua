-- One command. ARGV: its words. Returns its reply.
return redis.call(unpack(ARGV))
