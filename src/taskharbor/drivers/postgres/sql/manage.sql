-- What operators do: cancel, dead-letter, delete, replay, reschedule, pause.

-- name: cancel_request
-- Ask the holders to stop; a cancel overrides a requested dead letter (T3). $1 ids $2 now
WITH given AS MATERIALIZED (
    SELECT seq FROM harbor.job WHERE id = ANY ($1::text[])
)
UPDATE harbor.live SET stop_requested_at = $2, stop_reason = NULL, stop_fingerprint = NULL, stop_keep_until = NULL FROM given
WHERE live.seq = given.seq AND live.token IS NOT NULL AND (live.stop_requested_at IS NULL OR live.stop_reason IS NOT NULL)

-- name: dead_letter
-- Dead-letter jobs in line by hand (Q4). $1 ids $2 reasons $3 fingerprints $4 keep_until $5 now $6 keep_until of
-- kept jobs
WITH gone AS (
    DELETE FROM harbor.live
    USING unnest($1::text[], $2::text[], $3::text[], $4::timestamptz[]) AS given (id, reason, cause, until)
        JOIN harbor.job USING (id)
    WHERE live.seq = job.seq AND live.token IS NULL
    RETURNING live.*, job.id, given.reason, given.cause, CASE WHEN job.kept THEN $6 ELSE given.until END AS until
),
dead AS (
    INSERT INTO harbor.ended (
        seq, version, unmet, attempts, crashes, unknown_put_backs, due_at, completed_at, keep_until, run_at, expires_at,
        claimed_at, started_at, failed_at, settled_at, state, queue, worker, settled_token, settled_kind, dlq_reason,
        fingerprint, progress, last_error, failures
    )
    SELECT seq, version, unmet, attempts, crashes, unknown_put_backs, due_at, $5, until, run_at, expires_at, claimed_at,
        started_at, failed_at, settled_at, 'dlq', queue, worker, settled_token, settled_kind, reason, cause, progress,
        last_error, failures
    FROM gone
)
SELECT id, 'dlq', until FROM gone

-- name: dead_letter_request
-- Ask the holders to stop, so that the jobs die; the first request counts (T3, Q4). $1 ids $2 reasons
-- $3 fingerprints $4 keep_until $5 now
UPDATE harbor.live SET stop_requested_at = $5, stop_reason = given.reason, stop_fingerprint = given.cause,
    stop_keep_until = given.until
FROM unnest($1::text[], $2::text[], $3::text[], $4::timestamptz[]) AS given (id, reason, cause, until)
    JOIN harbor.job USING (id)
WHERE live.seq = job.seq AND live.token IS NOT NULL AND live.stop_requested_at IS NULL

-- name: delete_records
-- What deleting reads of jobs. $1 ids
SELECT id, idempotency_key, workflow_id FROM harbor.job WHERE id = ANY ($1::text[])

-- name: delete_below
-- The edges below jobs, with the states of dependants that have ended. LATERAL, OFFSET and LIMIT make it one index
-- lookup per row. $1 ids
SELECT edge.child, edge.position, given.id, edge.policy, edge.satisfied, ended.state
FROM unnest($1::text[]) AS given (id)
CROSS JOIN LATERAL (
    SELECT child, position, policy, satisfied FROM harbor.edge WHERE edge.parent = given.id OFFSET 0
) AS edge
CROSS JOIN LATERAL (SELECT seq FROM harbor.job WHERE job.id = edge.child LIMIT 1) AS job
LEFT JOIN LATERAL (SELECT state FROM harbor.ended WHERE ended.seq = job.seq LIMIT 1) AS ended ON true

-- name: delete
-- Delete jobs that have ended, and the keys they own. $1 ids
WITH gone AS (
    DELETE FROM harbor.ended USING harbor.job WHERE job.id = ANY ($1::text[]) AND ended.seq = job.seq
    RETURNING ended.seq, job.id, job.idempotency_key
),
freed AS (
    DELETE FROM harbor.keys USING gone WHERE keys.key = gone.idempotency_key AND keys.owner = gone.id
)
DELETE FROM harbor.job USING gone WHERE job.seq = gone.seq RETURNING job.id, job.workflow_id

-- name: delete_edges
-- Delete the edges of jobs that are gone, in one order: others may be deleting the jobs at the other ends. $1 ids
WITH found AS MATERIALIZED (
    SELECT child, position FROM harbor.edge WHERE child = ANY ($1::text[])
    UNION
    SELECT child, position FROM harbor.edge WHERE parent = ANY ($1::text[])
),
held AS MATERIALIZED (
    SELECT child, position FROM harbor.edge JOIN found USING (child, position) ORDER BY child, position FOR UPDATE OF edge
)
DELETE FROM harbor.edge USING held WHERE edge.child = held.child AND edge.position = held.position

-- name: replay_parents
-- Lock the live parents of these jobs before the jobs themselves, as a parent's end does. LATERAL, OFFSET and LIMIT
-- make it one index lookup per row. $1 ids
WITH parents AS MATERIALIZED (
    SELECT job.seq FROM unnest($1::text[]) AS given (id)
    CROSS JOIN LATERAL (SELECT parent FROM harbor.edge WHERE edge.child = given.id OFFSET 0) AS edge
    CROSS JOIN LATERAL (SELECT seq FROM harbor.job WHERE job.id = edge.parent LIMIT 1) AS job
)
SELECT seq FROM harbor.live WHERE seq = ANY (ARRAY (SELECT seq FROM parents)) ORDER BY seq FOR UPDATE

-- name: replay
-- $1 ids $2 payloads $3 keys $4 key_expires_at $5 run_at $6 due_at
WITH again AS (
    UPDATE harbor.job SET payload = coalesce(given.payload, job.payload), idempotency_key = given.key,
        key_expires_at = given.key_expires_at, run_at = given.run_at, expires_at = NULL,
        original_id = coalesce(job.original_id, job.id), replays = job.replays + 1
    FROM unnest($1::text[], $2::bytea[], $3::text[], $4::timestamptz[], $5::timestamptz[], $6::timestamptz[])
        AS given (id, payload, key, key_expires_at, run_at, due_at)
    WHERE job.id = given.id RETURNING job.seq, job.id, job.priority, given.run_at, given.due_at
),
gone AS (
    DELETE FROM harbor.ended USING again WHERE ended.seq = again.seq
    RETURNING ended.*, again.id, again.priority, again.run_at AS next_run_at, again.due_at AS next_due_at
)
INSERT INTO harbor.live (
    seq, priority, awaited, version, unmet, due_at, run_at, claimed_at, started_at, failed_at, settled_at, state, queue,
    worker, settled_token, settled_kind, last_error, failures
)
SELECT seq, priority, (SELECT true FROM harbor.edge WHERE edge.parent = gone.id LIMIT 1) IS NOT NULL, version, unmet, next_due_at,
    next_run_at, claimed_at, started_at, failed_at, settled_at, CASE WHEN gone.unmet > 0 THEN 'waiting' ELSE 'ready' END,
    queue, worker, settled_token, settled_kind, last_error, failures
FROM gone

-- name: replay_reopen
-- Replayed jobs wait again for parents whose failure they had collected and that run again. These are locked: one
-- that is ending now would not release them. LATERAL, OFFSET and LIMIT make it one index lookup per row. $1 ids
WITH collected AS MATERIALIZED (
    SELECT edge.child, edge.position, job.seq FROM unnest($1::text[]) AS given (id)
    CROSS JOIN LATERAL (
        SELECT child, position, parent FROM harbor.edge WHERE edge.child = given.id AND edge.satisfied OFFSET 0
    ) AS edge
    CROSS JOIN LATERAL (SELECT seq FROM harbor.job WHERE job.id = edge.parent LIMIT 1) AS job
),
running AS MATERIALIZED (
    SELECT seq FROM harbor.live WHERE seq = ANY (ARRAY (SELECT seq FROM collected)) ORDER BY seq FOR UPDATE
),
awaited AS (
    UPDATE harbor.live SET awaited = true WHERE seq = ANY (ARRAY (SELECT seq FROM running))
)
UPDATE harbor.edge SET satisfied = false FROM collected
WHERE edge.child = collected.child AND edge.position = collected.position
    AND collected.seq = ANY (ARRAY (SELECT seq FROM running))
RETURNING edge.child

-- name: replay_wait
-- $1 ids $2 how many more
UPDATE harbor.live SET unmet = unmet + given.more, state = 'waiting'
FROM unnest($1::text[], $2::integer[]) AS given (id, more) JOIN harbor.job USING (id)
WHERE live.seq = job.seq

-- name: reschedule
-- Move a ready job: one without a holder and without unmet dependencies. Its state is not named, or the whole line
-- would be read. $1 id $2 run_at $3 priority
WITH moved AS (
    UPDATE harbor.live SET run_at = coalesce($2, live.run_at), due_at = coalesce($2, live.due_at),
        priority = coalesce($3, live.priority)
    FROM harbor.job WHERE job.id = $1 AND live.seq = job.seq AND live.token IS NULL AND live.unmet = 0
    RETURNING live.seq, live.priority
)
UPDATE harbor.job SET priority = moved.priority FROM moved WHERE job.seq = moved.seq RETURNING 1

-- name: pause
-- $1 queue
INSERT INTO harbor.paused (queue) VALUES ($1) ON CONFLICT DO NOTHING

-- name: pause_end
-- $1 queue
DELETE FROM harbor.paused WHERE queue = $1
