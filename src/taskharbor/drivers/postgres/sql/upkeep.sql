-- Sweep and prune.

-- name: sweep_stopping
-- $1 now $2 limit
SELECT job.id FROM harbor.live CROSS JOIN LATERAL (SELECT id FROM harbor.job WHERE job.seq = live.seq LIMIT 1) AS job
WHERE live.state = 'inflight' AND live.lease_expires_at <= $1 AND live.stop_requested_at IS NOT NULL
ORDER BY live.stop_requested_at, live.seq LIMIT $2 FOR UPDATE OF live SKIP LOCKED

-- name: sweep_expired
-- $1 now $2 limit
SELECT job.id FROM harbor.live CROSS JOIN LATERAL (SELECT id FROM harbor.job WHERE job.seq = live.seq LIMIT 1) AS job
WHERE live.expires_at <= $1 AND (live.lease_expires_at IS NULL OR live.lease_expires_at <= $1)
ORDER BY live.expires_at, job.id LIMIT $2 FOR UPDATE OF live SKIP LOCKED

-- part: needed
-- Whether a dependant of `job` is not done; a dead one may be replayed, and reads the results again (K3). By LATERAL and
-- LIMIT it is looked up for one job after the other, until there are enough.
LATERAL (
    SELECT true AS found
    FROM harbor.edge
    CROSS JOIN LATERAL (SELECT child.seq FROM harbor.job AS child WHERE child.id = edge.child LIMIT 1) AS child
    LEFT JOIN LATERAL (SELECT state FROM harbor.ended WHERE ended.seq = child.seq LIMIT 1) AS end_of_child ON true
    WHERE edge.parent = job.id AND (NOT edge.satisfied OR end_of_child.state IS DISTINCT FROM 'done') LIMIT 1
) AS needed

-- name: prune
-- Lock the next jobs, behind a position, that were kept long enough and that no dependant needs (X8). A workflow goes as
-- a whole with the first of its jobs that is found. $1 now $2 $3 the position, by time and number $4 limit
SELECT job.id, job.workflow_id, ended.keep_until, ended.seq FROM harbor.ended
CROSS JOIN LATERAL (SELECT id, workflow_id FROM harbor.job WHERE job.seq = ended.seq LIMIT 1) AS job LEFT JOIN
-- include: needed
ON true
WHERE ended.keep_until <= $1 AND (ended.keep_until, ended.seq + 0) > ($2, $3) AND NOT coalesce(needed.found, false)
ORDER BY ended.keep_until, ended.seq + 0 LIMIT $4 FOR UPDATE OF ended SKIP LOCKED

-- name: prune_delete
-- Delete jobs and their keys. The jobs are locked; one of them may have got a dependant before. $1 ids
WITH gone AS (
    DELETE FROM harbor.ended USING harbor.job LEFT JOIN
-- include: needed
    ON true
    WHERE job.id = ANY ($1::text[]) AND ended.seq BETWEEN job.seq AND job.seq AND NOT coalesce(needed.found, false)
    RETURNING ended.seq, job.id, job.idempotency_key
),
-- include: freed
DELETE FROM harbor.job WHERE job.seq = ANY (ARRAY (SELECT seq FROM gone)) RETURNING job.id
