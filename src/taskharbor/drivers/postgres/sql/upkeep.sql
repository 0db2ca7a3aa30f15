-- Sweep and prune.

-- name: sweep_stopping
-- $1 now $2 limit
SELECT job.id FROM harbor.live JOIN harbor.job USING (seq)
WHERE live.state = 'inflight' AND live.lease_expires_at <= $1 AND live.stop_requested_at IS NOT NULL
ORDER BY live.stop_requested_at, live.seq LIMIT $2 FOR UPDATE OF live SKIP LOCKED

-- name: sweep_expired
-- $1 now $2 limit
SELECT job.id FROM harbor.live JOIN harbor.job USING (seq)
WHERE live.expires_at <= $1 AND (live.lease_expires_at IS NULL OR live.lease_expires_at <= $1)
ORDER BY live.expires_at, job.id LIMIT $2 FOR UPDATE OF live SKIP LOCKED

-- part: needed
-- Whether a dependant of `job` is not done; a dead one may be replayed, and reads the results again (K3). By LATERAL and
-- LIMIT it is looked up for one job after the other, until there are enough, instead of joined as a whole.
LATERAL (
    SELECT true AS found
    FROM harbor.edge JOIN harbor.job AS child ON child.id = edge.child
    LEFT JOIN harbor.ended AS end_of_child ON end_of_child.seq = child.seq
    WHERE edge.parent = job.id AND (NOT edge.satisfied OR end_of_child.state IS DISTINCT FROM 'done') LIMIT 1
) AS needed

-- name: prune
-- Lock the next jobs, behind a position, that were kept long enough and that no dependant needs (X8). A workflow goes as
-- a whole with the first of its jobs that is found. $1 now $2 $3 the position, by time and number $4 limit
SELECT job.id, job.workflow_id, ended.keep_until, ended.seq FROM harbor.ended JOIN harbor.job USING (seq) LEFT JOIN
-- include: needed
ON true
WHERE ended.keep_until <= $1 AND (ended.keep_until, ended.seq) > ($2, $3) AND NOT coalesce(needed.found, false)
ORDER BY ended.keep_until, ended.seq LIMIT $4 FOR UPDATE OF ended SKIP LOCKED

-- name: prune_delete
-- Delete jobs and their keys. The jobs are locked; one of them may have got a dependant before. $1 ids
WITH gone AS (
    DELETE FROM harbor.ended USING harbor.job LEFT JOIN
-- include: needed
    ON true
    WHERE job.id = ANY ($1::text[]) AND ended.seq = job.seq AND NOT coalesce(needed.found, false)
    RETURNING ended.seq, job.id, job.idempotency_key
),
held AS MATERIALIZED (
    SELECT key FROM harbor.keys WHERE key = ANY (ARRAY (SELECT idempotency_key FROM gone)) ORDER BY key FOR UPDATE
),
freed AS (
    DELETE FROM harbor.keys USING gone
    WHERE keys.key = gone.idempotency_key AND keys.owner = gone.id AND keys.key = ANY (ARRAY (SELECT key FROM held))
)
DELETE FROM harbor.job USING gone WHERE job.seq = gone.seq RETURNING job.id
