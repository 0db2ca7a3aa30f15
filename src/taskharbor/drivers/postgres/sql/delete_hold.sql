-- Hold the keys of jobs that are forgotten one by one, in the order in which everybody takes keys. $1 ids
SELECT key FROM harbor.keys
WHERE key = ANY (ARRAY (SELECT idempotency_key FROM harbor.job WHERE id = ANY ($1::text[]))) ORDER BY key FOR UPDATE
