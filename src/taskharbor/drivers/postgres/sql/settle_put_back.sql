-- Back in line, those that nobody asked to cancel (T3). $1 numbers $2 what the tokens begin with $3 attempts $4 crashes
-- $5 put-backs $6 errors $7 failed_at $8 failures $9 run_at $10 now
UPDATE harbor.live SET state = 'ready', token = NULL, lease_expires_at = NULL, worker = NULL, claimed_at = NULL, started_at = NULL,
    progress = NULL, settled_token = live.token, attempts = given.attempts, crashes = given.crashes,
    unknown_put_backs = given.put_backs, last_error = given.error, failed_at = given.failed_at,
    failures = given.failures, run_at = given.run_at, due_at = given.run_at
FROM unnest($1::bigint[], $2::text[], $3::integer[], $4::integer[], $5::integer[], $6::text[], $7::timestamptz[],
    $8::text[], $9::timestamptz[])
    AS given (seq, token, attempts, crashes, put_backs, error, failed_at, failures, run_at)
WHERE live.seq = given.seq AND live.token = given.token AND live.lease_expires_at > $10
    AND live.cancel_requested_at IS NULL
RETURNING live.seq
