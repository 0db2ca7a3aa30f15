-- Back in line, those that nobody asked to stop (T3). $1 numbers $2 what the tokens begin with $3 attempts $4 crashes
-- $5 put-backs $6 errors $7 failed_at $8 failures $9 started_at $10 run_at $11 now
UPDATE harbor.live SET state = 'ready', token = NULL, lease_expires_at = NULL, started_at = given.started_at, progress = NULL,
    settled_token = live.token, settled_kind = 'put_back', settled_at = $11, attempts = given.attempts,
    crashes = given.crashes, unknown_put_backs = given.put_backs, last_error = given.error, failed_at = given.failed_at,
    failures = given.failures, run_at = given.run_at, due_at = given.run_at
FROM unnest($1::bigint[], $2::text[], $3::integer[], $4::integer[], $5::integer[], $6::text[], $7::timestamptz[],
    $8::text[], $9::timestamptz[], $10::timestamptz[])
    AS given (seq, token, attempts, crashes, put_backs, error, failed_at, failures, started_at, run_at)
WHERE live.seq = given.seq AND live.token = given.token AND live.lease_expires_at > $11
    AND live.stop_requested_at IS NULL
RETURNING live.seq
