-- What operators and upkeep do: the reads and writes of steps of the core (decision 19), and pause.

-- name: step_hold_parents
-- Lock the live parents of these jobs before the jobs themselves, as a parent's end does. LATERAL, OFFSET and LIMIT
-- make it one index lookup per row. $1 ids
WITH parents AS MATERIALIZED (
    SELECT job.seq, job.id FROM unnest($1::text[]) AS given (id)
    CROSS JOIN LATERAL (SELECT parent FROM harbor.edge WHERE edge.child = given.id OFFSET 0) AS edge
    CROSS JOIN LATERAL (SELECT seq, id FROM harbor.job WHERE job.id = edge.parent LIMIT 1) AS job
),
held AS MATERIALIZED (
    SELECT seq FROM harbor.live WHERE seq = ANY (ARRAY (SELECT seq FROM parents)) ORDER BY seq FOR UPDATE
)
SELECT DISTINCT id FROM parents WHERE seq = ANY (ARRAY (SELECT seq FROM held))

-- part: live_columns
SELECT job.id, job.type, live.due_at, live.state, live.lease_expires_at, live.run_at, live.expires_at,
    NULL::timestamptz AS completed_at, NULL::timestamptz AS keep_until, job.key_expires_at, live.stop_requested_at,
    live.stop_keep_until, job.idempotency_key, live.stop_reason, live.stop_fingerprint, NULL::text AS dlq_reason,
    NULL::text AS fingerprint, job.original_id, job.workflow_id, live.attempts, live.crashes, live.unknown_put_backs,
    live.unmet, job.replays, live.priority, coalesce(job.kept, false)

-- part: ended_columns
SELECT job.id, job.type, ended.due_at, ended.state, NULL::timestamptz AS lease_expires_at, ended.run_at, ended.expires_at,
    ended.completed_at, ended.keep_until, job.key_expires_at, ended.stop_requested_at, ended.stop_keep_until,
    job.idempotency_key, ended.stop_reason, ended.stop_fingerprint, ended.dlq_reason, ended.fingerprint, job.original_id,
    job.workflow_id, ended.attempts, ended.crashes, ended.unknown_put_backs, ended.unmet, job.replays, job.priority,
    coalesce(job.kept, false)

-- part: live_jobs
-- include: live_columns
FROM harbor.job CROSS JOIN LATERAL (SELECT * FROM harbor.live WHERE live.seq = job.seq LIMIT 1) AS live
WHERE job.id = ANY ($1::text[])

-- part: ended_jobs
-- include: ended_columns
FROM harbor.job CROSS JOIN LATERAL (SELECT * FROM harbor.ended WHERE ended.seq = job.seq LIMIT 1) AS ended
WHERE job.id = ANY ($1::text[])

-- part: held_live
live_held AS MATERIALIZED (
-- include: live_columns
FROM (
    SELECT * FROM harbor.live WHERE live.seq = ANY (
-- include: numbers
    ) ORDER BY live.seq FOR UPDATE OF live
) AS live JOIN harbor.job ON job.seq BETWEEN live.seq AND live.seq
)

-- part: held_ended
ended_held AS MATERIALIZED (
-- include: ended_columns
FROM (
    SELECT * FROM harbor.ended WHERE ended.seq = ANY (
-- include: numbers
    ) ORDER BY ended.seq FOR UPDATE OF ended
) AS ended JOIN harbor.job ON job.seq BETWEEN ended.seq AND ended.seq
)

-- name: step_jobs
-- Read jobs. $1 ids
-- include: live_jobs
UNION ALL
-- include: ended_jobs

-- name: step_hold_live
-- The same, and lock the live ones. One that ended while this waited for its row is left out. $1 ids
WITH
-- include: held_live
SELECT * FROM live_held UNION ALL
-- include: ended_jobs

-- name: step_hold_ended
-- The same, and lock the ended ones. $1 ids
WITH
-- include: held_ended
SELECT * FROM ended_held UNION ALL
-- include: live_jobs

-- name: step_hold
-- The same, and lock all, the live ones first. $1 ids
WITH
-- include: held_live
,
-- include: held_ended
SELECT * FROM live_held UNION ALL SELECT * FROM ended_held

-- name: step_above
-- LATERAL and OFFSET make it one index lookup per row. $1 ids
SELECT given.id, edge.position, edge.parent, edge.policy, edge.satisfied
FROM unnest($1::text[]) AS given (id) CROSS JOIN LATERAL (
    SELECT position, parent, policy, satisfied FROM harbor.edge WHERE edge.child = given.id OFFSET 0
) AS edge

-- name: step_below
-- The same. $1 ids
SELECT edge.child, edge.position, given.id, edge.policy, edge.satisfied
FROM unnest($1::text[]) AS given (id) CROSS JOIN LATERAL (
    SELECT child, position, policy, satisfied FROM harbor.edge WHERE edge.parent = given.id OFFSET 0
) AS edge

-- name: step_line
-- These jobs, and up to a thousand that are cancelled with them: dependants, and in turn theirs. $1 ids
WITH RECURSIVE line (id) AS (
    SELECT given.id COLLATE "C" FROM unnest($1::text[]) AS given (id)
    UNION
    SELECT edge.child FROM line CROSS JOIN LATERAL (
        SELECT child FROM harbor.edge WHERE edge.parent = line.id AND NOT satisfied AND policy = 'cancel' OFFSET 0
    ) AS edge
)
SELECT id FROM line LIMIT 1000

-- name: step_keys
-- Lock keys. $1 keys
SELECT key, owner, digest, expires_at FROM harbor.keys WHERE key = ANY ($1::text[]) AND owner <> '' ORDER BY key FOR UPDATE

-- name: step_owned
-- Lock the keys of workflows: of two transactions that remove a record each, the second must see what the first
-- removed. $1 workflows
SELECT key, owner, digest, expires_at FROM harbor.keys
WHERE key = ANY (ARRAY (SELECT key FROM harbor.keys WHERE owner = ANY ($1::text[]))) AND owner = ANY ($1::text[])
ORDER BY key FOR UPDATE

-- name: step_unfinished
-- The number of unfinished jobs of each owner of a key, a job or a workflow. $1 owners
SELECT given.id, (SELECT count(*) FROM harbor.live WHERE live.seq = (SELECT job.seq FROM harbor.job WHERE job.id = given.id))
    + (SELECT count(*) FROM harbor.job WHERE job.workflow_id = given.id
        AND (SELECT live.seq FROM harbor.live WHERE live.seq = job.seq) IS NOT NULL)
FROM unnest($1::text[]) AS given (id)

-- name: step_payloads
-- $1 ids
SELECT id, payload FROM harbor.job WHERE id = ANY ($1::text[])

-- name: step_kept
-- LATERAL and LIMIT make it one index lookup per row. $1 workflows
SELECT given.id, (
    SELECT CASE WHEN bool_and(ended.seq IS NOT NULL) THEN max(ended.keep_until) END
    FROM harbor.job LEFT JOIN LATERAL (
        SELECT seq, keep_until FROM harbor.ended WHERE ended.seq = job.seq LIMIT 1
    ) AS ended ON true
    WHERE job.workflow_id = given.id
) FROM unnest($1::text[]) AS given (id)

-- name: step_members
-- The last members first: dependants before their parents. $1 workflow $2 limit
SELECT id FROM harbor.job WHERE workflow_id BETWEEN $1 AND $1 ORDER BY workflow_id DESC, seq DESC LIMIT $2

-- name: step_put
-- Write jobs: the request where it has changed, and the rest, which moves from live to ended or back. The rows are
-- locked, so their places are certain; joined by them, each costs one lookup. $1 ids $2 new payloads $3 to $23 the
-- columns of step_jobs that steps change, in their order
WITH given AS MATERIALIZED (
    SELECT given.*, job.seq, job.place AS job_place, live.place AS live_place, ended.place AS ended_place,
        given.payload IS NOT NULL OR (job.idempotency_key, job.key_expires_at, job.priority, job.replays)
        IS DISTINCT FROM (given.idempotency_key, given.key_expires_at, given.priority, given.replays) AS is_asked
    FROM unnest($1::text[], $2::bytea[], $3::timestamptz[], $4::timestamptz[], $5::timestamptz[], $6::timestamptz[],
        $7::timestamptz[], $8::timestamptz[], $9::timestamptz[], $10::timestamptz[], $11::text[], $12::text[], $13::text[],
        $14::text[], $15::text[], $16::text[], $17::text[], $18::integer[], $19::integer[], $20::integer[],
        $21::integer[], $22::integer[], $23::smallint[])
        AS given (id, payload, due_at, run_at, expires_at, completed_at, keep_until, key_expires_at, stop_requested_at,
        stop_keep_until, state, idempotency_key, stop_reason, stop_fingerprint, dlq_reason, fingerprint, original_id,
        attempts, crashes, unknown_put_backs, unmet, replays, priority)
    CROSS JOIN LATERAL (SELECT *, ctid AS place FROM harbor.job WHERE job.id = given.id LIMIT 1) AS job
    LEFT JOIN LATERAL (SELECT ctid AS place FROM harbor.live WHERE live.seq = job.seq LIMIT 1) AS live ON true
    LEFT JOIN LATERAL (
        SELECT ctid AS place FROM harbor.ended WHERE live.place IS NULL AND ended.seq = job.seq LIMIT 1
    ) AS ended ON true
),
asked AS (
    UPDATE harbor.job SET payload = coalesce(given.payload, job.payload), idempotency_key = given.idempotency_key,
        key_expires_at = given.key_expires_at, run_at = given.run_at, expires_at = given.expires_at,
        original_id = given.original_id, replays = given.replays, priority = given.priority
    FROM given WHERE job.ctid = given.job_place AND given.is_asked
),
dropped AS (
    DELETE FROM harbor.live USING given WHERE live.ctid = given.live_place AND given.completed_at IS NOT NULL
    RETURNING given.*, live.version, live.claimed_at, live.started_at, live.failed_at, live.settled_at, live.queue,
        live.worker, live.settled_token, live.settled_kind, live.progress, live.last_error, live.failures
),
stored AS (
    INSERT INTO harbor.ended (
        seq, version, unmet, attempts, crashes, unknown_put_backs, due_at, completed_at, keep_until, run_at, expires_at,
        claimed_at, started_at, stop_requested_at, stop_keep_until, failed_at, settled_at, state, queue, worker,
        settled_token, settled_kind, stop_reason, stop_fingerprint, dlq_reason, fingerprint, progress, last_error, failures
    )
    SELECT seq, version, unmet, attempts, crashes, unknown_put_backs, due_at, completed_at, keep_until, run_at, expires_at,
        claimed_at, started_at, stop_requested_at, stop_keep_until, failed_at, settled_at, state, queue, worker,
        settled_token, settled_kind, stop_reason, stop_fingerprint, dlq_reason, fingerprint, progress, last_error, failures
    FROM dropped
),
revived AS (
    DELETE FROM harbor.ended USING given WHERE ended.ctid = given.ended_place AND given.completed_at IS NULL
    RETURNING given.*, ended.version, ended.claimed_at, ended.started_at, ended.failed_at, ended.settled_at, ended.queue,
        ended.worker, ended.settled_token, ended.settled_kind, ended.last_error, ended.failures
),
lined AS (
    INSERT INTO harbor.live (
        seq, priority, awaited, version, unmet, attempts, crashes, unknown_put_backs, due_at, run_at, expires_at, claimed_at,
        started_at, failed_at, settled_at, state, queue, worker, settled_token, settled_kind, last_error, failures
    )
    SELECT seq, priority, (SELECT true FROM harbor.edge WHERE edge.parent = revived.id LIMIT 1) IS NOT NULL, version, unmet,
        attempts, crashes, unknown_put_backs, due_at, run_at, expires_at, claimed_at, started_at, failed_at, settled_at,
        state, queue, worker, settled_token, settled_kind, last_error, failures
    FROM revived
),
moved AS (
    UPDATE harbor.live SET priority = given.priority, unmet = given.unmet, state = given.state, due_at = given.due_at,
        run_at = given.run_at, stop_requested_at = given.stop_requested_at, stop_reason = given.stop_reason,
        stop_fingerprint = given.stop_fingerprint, stop_keep_until = given.stop_keep_until
    FROM given WHERE live.ctid = given.live_place AND given.completed_at IS NULL
)
UPDATE harbor.ended SET unmet = given.unmet, keep_until = given.keep_until
FROM given WHERE ended.ctid = given.ended_place AND given.completed_at IS NOT NULL

-- name: step_edge
-- $1 children $2 positions $3 satisfied
WITH found AS MATERIALIZED (
    SELECT given.satisfied, edge.place
    FROM unnest($1::text[], $2::integer[], $3::boolean[]) AS given (child, position, satisfied)
    CROSS JOIN LATERAL (
        SELECT ctid AS place FROM harbor.edge WHERE edge.child = given.child AND edge.position = given.position LIMIT 1
    ) AS edge
)
UPDATE harbor.edge SET satisfied = found.satisfied FROM found WHERE edge.ctid = found.place

-- name: step_remove
-- Remove jobs that have ended. $1 ids
WITH gone AS (
    DELETE FROM harbor.job WHERE id = ANY ($1::text[]) RETURNING seq
)
DELETE FROM harbor.ended WHERE seq = ANY (ARRAY (SELECT seq FROM gone))

-- name: step_remove_edges
-- Delete the edges of jobs that are gone, in one order: others may be deleting the jobs at the other ends. $1 ids
WITH found AS MATERIALIZED (
    SELECT child, position FROM harbor.edge WHERE child = ANY ($1::text[])
    UNION ALL
    SELECT child, position FROM harbor.edge WHERE parent = ANY ($1::text[])
),
held AS MATERIALIZED (
    SELECT edge.child, edge.position FROM (SELECT DISTINCT child, position FROM found ORDER BY child, position) AS given
    CROSS JOIN LATERAL (
        SELECT child, position FROM harbor.edge WHERE edge.child = given.child AND edge.position = given.position
        FOR UPDATE OF edge
    ) AS edge
)
DELETE FROM harbor.edge USING held WHERE edge.child = ANY (ARRAY[held.child]) AND edge.position = held.position

-- name: step_keep
-- Keep the ended jobs of workflows until a later time; rows that another transaction holds are skipped. LATERAL,
-- OFFSET and LIMIT make it one index lookup per row. $1 workflows $2 until
WITH early AS MATERIALIZED (
    SELECT ended.seq, given.until FROM unnest($1::text[], $2::timestamptz[]) AS given (id, until)
    CROSS JOIN LATERAL (SELECT seq FROM harbor.job WHERE job.workflow_id = given.id OFFSET 0) AS job
    CROSS JOIN LATERAL (SELECT seq, keep_until FROM harbor.ended WHERE ended.seq = job.seq LIMIT 1) AS ended
    WHERE ended.keep_until < given.until
),
held AS MATERIALIZED (
    SELECT ended.seq, early.until FROM early
    CROSS JOIN LATERAL (SELECT seq FROM harbor.ended WHERE ended.seq = early.seq FOR UPDATE SKIP LOCKED) AS ended
)
UPDATE harbor.ended SET keep_until = held.until FROM held WHERE ended.seq BETWEEN held.seq AND held.seq

-- name: pause
-- $1 queue
INSERT INTO harbor.paused (queue) VALUES ($1) ON CONFLICT DO NOTHING

-- name: pause_end
-- $1 queue
DELETE FROM harbor.paused WHERE queue = $1
