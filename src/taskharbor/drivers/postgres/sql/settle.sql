-- Writing the outcomes of runs, fenced by token and expiry.

-- name: settle_done
-- Plain successes with what they add to the totals; those of awaited jobs only on request. An array of one counts for as
-- many of the same: times and texts cost the client more than the rest. $1 numbers $2 token prefixes $3 keep_until
-- $4 for how many microseconds they ran $5 now $6 whether awaited jobs too $7 the total that each adds to, by its place
-- in $9, 0 for none $8 minute $9 queues $10 tasks $11 outcomes of the totals
WITH gone AS (
    DELETE FROM harbor.live
    USING unnest($1::bigint[], $2::text[], $3::timestamptz[], $4::bigint[], $7::integer[])
        AS given (seq, token, keep_until, ran, total)
    WHERE live.seq = ANY (ARRAY[given.seq]) AND live.token = coalesce(given.token, ($2::text[])[1])
        AND live.lease_expires_at > $5 AND ($6 OR NOT live.awaited)
    RETURNING live.*, coalesce(given.keep_until, ($3::timestamptz[])[1]) AS keep_until,
        $5::timestamptz - given.ran * interval '1 microsecond' AS began_at, coalesce(given.total, ($7::integer[])[1]) AS total
), counted AS (
    INSERT INTO harbor.tally (minute, queue, task, outcome, backend, count, seconds, waited)
    SELECT
        $8, named.queue, named.task, named.outcome, pg_backend_pid(), count(*),
        coalesce(sum(date_part('epoch', $5 - began_at)), 0),
        coalesce(sum(date_part('epoch', began_at - due_at)) FILTER (WHERE began_at > due_at), 0)
    FROM gone
    JOIN unnest($9::text[], $10::text[], $11::text[]) WITH ORDINALITY AS named (queue, task, outcome, total) USING (total)
    GROUP BY named.queue, named.task, named.outcome
-- include: tally_sum
)
INSERT INTO harbor.ended (
    seq, version, unmet, attempts, crashes, unknown_put_backs, due_at, completed_at, keep_until, run_at, expires_at,
    claimed_at, started_at, stop_requested_at, stop_keep_until, state, queue, worker, settled_token, stop_reason,
    stop_fingerprint, progress
)
SELECT seq, version, 0, 0, 0, 0, due_at, $5, keep_until, run_at, expires_at, claimed_at, began_at, stop_requested_at,
    stop_keep_until, 'done', queue, worker, token, stop_reason, stop_fingerprint, progress
FROM gone
RETURNING seq

-- name: settle_ended
-- Outcomes that end their jobs; a put-back only if a stop was requested, which says how (T3). $1 numbers $2 token
-- prefixes $3 states $4 attempts $5 crashes $6 put-backs $7 errors $8 failed_at $9 failures $10 started_at
-- $11 keep_until $12 results $13 reasons $14 fingerprints $15 kinds, null for successes $16 now $17 keep_until of
-- kept jobs
WITH gone AS (
    DELETE FROM harbor.live
    USING unnest($1::bigint[], $2::text[], $3::text[], $4::integer[], $5::integer[], $6::integer[], $7::text[],
        $8::timestamptz[], $9::text[], $10::timestamptz[], $11::timestamptz[], $12::bytea[], $13::text[], $14::text[],
        $15::text[])
        AS given (seq, token, state, attempts, crashes, put_backs, error, failed_at, failures, began_at, until, result,
        reason, cause, kind)
    WHERE live.seq = ANY (ARRAY[given.seq]) AND live.token = given.token AND live.lease_expires_at > $16
        AND (given.kind IS DISTINCT FROM 'put_back' OR live.stop_requested_at IS NOT NULL)
    RETURNING live.seq, live.version, live.unmet, given.attempts, given.crashes, given.put_backs, live.due_at,
        given.until, live.run_at, live.expires_at, live.claimed_at, given.began_at, live.stop_requested_at,
        live.stop_keep_until, given.failed_at, given.state, live.queue, live.worker, live.token, given.kind,
        live.stop_reason, live.stop_fingerprint, given.reason, given.cause, live.progress, given.error, given.failures,
        given.result, coalesce(given.kind = 'put_back', false) AS stopped
)
INSERT INTO harbor.ended (
    seq, version, unmet, attempts, crashes, unknown_put_backs, due_at, completed_at, keep_until, run_at, expires_at,
    claimed_at, started_at, stop_requested_at, stop_keep_until, failed_at, settled_at, state, queue, worker,
    settled_token, settled_kind, stop_reason, stop_fingerprint, dlq_reason, fingerprint, progress, last_error, failures,
    result
)
SELECT seq, version, unmet, attempts, crashes, put_backs, due_at, $16,
    CASE WHEN (stopped OR state = 'cancelled') AND (SELECT job.kept FROM harbor.job WHERE job.seq = gone.seq) THEN $17
        WHEN stopped THEN coalesce(stop_keep_until, until) ELSE until END,
    run_at, expires_at, claimed_at, began_at, stop_requested_at, stop_keep_until, failed_at,
    CASE WHEN kind IS NOT NULL THEN $16 END, CASE WHEN stopped AND stop_reason IS NOT NULL THEN 'dlq' ELSE state END,
    queue, worker, token, kind, stop_reason, stop_fingerprint, CASE WHEN stopped THEN stop_reason ELSE reason END,
    CASE WHEN stopped THEN stop_fingerprint ELSE cause END, progress, error, failures, result
FROM gone
RETURNING seq, state

-- name: settle_put_back
-- Back in line, unless a stop was requested (T3). $1 numbers $2 token prefixes $3 attempts $4 crashes $5 put-backs
-- $6 errors $7 failed_at $8 failures $9 started_at $10 run_at $11 now
UPDATE harbor.live SET state = 'ready', token = NULL, lease_expires_at = NULL, started_at = given.started_at, progress = NULL,
    settled_token = live.token, settled_kind = 'put_back', settled_at = $11, attempts = given.attempts,
    crashes = given.crashes, unknown_put_backs = given.put_backs, last_error = given.error, failed_at = given.failed_at,
    failures = given.failures, run_at = given.run_at, due_at = given.run_at
FROM unnest($1::bigint[], $2::text[], $3::integer[], $4::integer[], $5::integer[], $6::text[], $7::timestamptz[],
    $8::text[], $9::timestamptz[], $10::timestamptz[])
    AS given (seq, token, attempts, crashes, put_backs, error, failed_at, failures, started_at, run_at)
WHERE live.seq = ANY (ARRAY[given.seq]) AND live.token = given.token AND live.lease_expires_at > $11
    AND live.stop_requested_at IS NULL
RETURNING live.seq
