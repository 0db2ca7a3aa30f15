-- What the end of a job does to the jobs that depend on it; the row locks that every such step takes first.

-- name: hold
-- Lock the live rows of these jobs in the order of heartbeats and settles, so that two steps never wait for each
-- other; returns their states. $1 ids
SELECT job.id, live.state FROM harbor.live JOIN harbor.job USING (seq) WHERE job.id = ANY ($1::text[])
ORDER BY live.seq FOR UPDATE OF live

-- name: hold_ended
-- Lock the ended rows of these jobs in one order; returns their states. $1 ids
SELECT job.id, ended.state FROM harbor.ended JOIN harbor.job USING (seq) WHERE job.id = ANY ($1::text[])
ORDER BY ended.seq FOR UPDATE OF ended

-- name: dependants
-- Dependants that still wait for these jobs. LATERAL and OFFSET make it one index lookup per job, whatever the
-- statistics say. $1 ids
SELECT given.id, open.child, open.position, open.policy
FROM unnest($1::text[]) AS given (id) CROSS JOIN LATERAL (
    SELECT child, position, policy FROM harbor.edge WHERE edge.parent = given.id AND NOT satisfied OFFSET 0
) AS open

-- name: dependants_satisfy
-- $1 children $2 positions
UPDATE harbor.edge SET satisfied = true
FROM unnest($1::text[], $2::integer[]) AS given (child, position)
WHERE edge.child = given.child AND edge.position = given.position

-- name: dependants_release
-- Lower unmet; the last dependency releases a waiting job. Returns the live ones, and whether each is in line now.
-- $1 ids $2 how many $3 now
UPDATE harbor.live SET unmet = unmet - given.met,
    state = CASE WHEN unmet = given.met AND state = 'waiting' THEN 'ready' ELSE state END,
    due_at = CASE WHEN unmet = given.met AND state = 'waiting' THEN greatest($3, coalesce(live.run_at, $3)) ELSE due_at END
FROM unnest($1::text[], $2::integer[]) AS given (id, met) JOIN harbor.job USING (id)
WHERE live.seq = job.seq
RETURNING job.id, live.state = 'ready'

-- name: dependants_release_ended
-- The same for dependants that have ended. $1 ids $2 how many
UPDATE harbor.ended SET unmet = unmet - given.met
FROM unnest($1::text[], $2::integer[]) AS given (id, met) JOIN harbor.job USING (id)
WHERE ended.seq = job.seq
RETURNING job.id

-- name: withdraw
-- End jobs without a holder: as their stop request says, otherwise cancelled (T1, T3). $1 ids $2 states they may be
-- in $3 now $4 keep_until $5 keep_until of kept jobs
WITH given AS MATERIALIZED (
    SELECT seq, id, kept FROM harbor.job WHERE id = ANY ($1::text[])
),
gone AS (
    DELETE FROM harbor.live USING given WHERE live.seq = given.seq AND $2::text[] @> ARRAY[live.state]
    RETURNING live.*, given.id, CASE WHEN live.stop_reason IS NULL THEN 'cancelled' ELSE 'dlq' END AS came_to,
        CASE WHEN given.kept THEN $5 ELSE coalesce(live.stop_keep_until, $4) END AS until
),
ended AS (
    INSERT INTO harbor.ended (
        seq, version, unmet, attempts, crashes, unknown_put_backs, due_at, completed_at, keep_until, run_at, expires_at,
        claimed_at, started_at, stop_requested_at, stop_keep_until, failed_at, settled_at, state, queue, worker,
        settled_token, settled_kind, stop_reason, stop_fingerprint, dlq_reason, fingerprint, progress, last_error, failures
    )
    SELECT seq, version, unmet, attempts, crashes, unknown_put_backs, due_at, $3, until, run_at, expires_at, claimed_at,
        started_at, stop_requested_at, stop_keep_until, failed_at, settled_at, came_to, queue, worker, settled_token,
        settled_kind, stop_reason, stop_fingerprint, stop_reason, stop_fingerprint, progress, last_error, failures
    FROM gone
)
SELECT id, came_to, until FROM gone
