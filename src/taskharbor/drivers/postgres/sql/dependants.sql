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

-- name: hold_free
-- Lock the ended rows of these jobs that no other transaction holds. $1 ids
SELECT job.id FROM harbor.ended JOIN harbor.job USING (seq) WHERE job.id = ANY ($1::text[])
FOR UPDATE OF ended SKIP LOCKED

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
