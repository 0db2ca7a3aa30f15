-- $1 channel
SELECT pg_notify($1, '')
