-- What the end of a job does to the jobs that depend on it; the row locks that every such step takes first. Why
-- lookups are written as LATERAL, as arrays and as BETWEEN, in all these files: docs/adr/0012.

-- part: numbers
-- The numbers of jobs, as an array. $1 ids
ARRAY (SELECT job.seq FROM harbor.job WHERE job.id = ANY ($1::text[]))

-- name: hold
-- Lock the live rows of these jobs in the order of heartbeats and settles, so that two steps never wait for each
-- other; returns their states. $1 ids
SELECT (SELECT job.id FROM harbor.job WHERE job.seq = held.seq), held.state FROM (
    SELECT live.seq, live.state FROM harbor.live WHERE live.seq = ANY (
-- include: numbers
    ) ORDER BY live.seq FOR UPDATE OF live
) AS held

-- name: hold_ended
-- Lock the ended rows of these jobs in one order; returns their states. $1 ids
SELECT (SELECT job.id FROM harbor.job WHERE job.seq = held.seq), held.state FROM (
    SELECT ended.seq, ended.state FROM harbor.ended WHERE ended.seq = ANY (
-- include: numbers
    ) ORDER BY ended.seq FOR UPDATE OF ended
) AS held

-- name: hold_free
-- Lock the ended rows of these jobs that no other transaction holds. $1 ids
SELECT (SELECT job.id FROM harbor.job WHERE job.seq = held.seq) FROM (
    SELECT ended.seq FROM harbor.ended WHERE ended.seq = ANY (
-- include: numbers
    ) FOR UPDATE OF ended SKIP LOCKED
) AS held

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
WHERE edge.child = ANY (ARRAY[given.child]) AND edge.position = given.position

-- name: dependants_release
-- Lower unmet; the last dependency releases a waiting job. Returns the live ones, and whether each is in line now.
-- $1 ids $2 how many $3 now
UPDATE harbor.live SET unmet = unmet - given.met,
    state = CASE WHEN unmet = given.met AND state = 'waiting' THEN 'ready' ELSE state END,
    due_at = CASE WHEN unmet = given.met AND state = 'waiting' THEN greatest($3, coalesce(live.run_at, $3)) ELSE due_at END
FROM unnest($1::text[], $2::integer[]) AS given (id, met)
CROSS JOIN LATERAL (SELECT seq, id FROM harbor.job WHERE job.id = given.id LIMIT 1) AS job
WHERE live.seq = ANY (ARRAY[job.seq])
RETURNING job.id, live.state = 'ready'

-- name: dependants_release_ended
-- The same for dependants that have ended. $1 ids $2 how many
UPDATE harbor.ended SET unmet = unmet - given.met
FROM unnest($1::text[], $2::integer[]) AS given (id, met)
CROSS JOIN LATERAL (SELECT seq, id FROM harbor.job WHERE job.id = given.id LIMIT 1) AS job
WHERE ended.seq = ANY (ARRAY[job.seq])
RETURNING job.id
