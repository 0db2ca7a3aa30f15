-- Reading jobs, counts, dead groups and workflows; what a connection leads to.

-- name: location
-- The database of a connection, and whether our tables are there; asks the catalogue, which every role may.
-- $1 schema
SELECT current_database(), EXISTS (SELECT FROM pg_catalog.pg_tables WHERE schemaname = $1::text AND tablename = 'live')

-- name: version
-- The newest step that was done, and the oldest version of the schema whose programs can work with it.
SELECT number, works_with FROM harbor.version ORDER BY number DESC LIMIT 1

-- name: get
-- $1 ids
SELECT record.* FROM harbor.job
CROSS JOIN LATERAL (SELECT * FROM harbor.record WHERE record.seq = job.seq LIMIT 1) AS record
WHERE job.id = ANY ($1::text[])

-- name: is_live
-- $1 id
SELECT FROM harbor.live WHERE live.seq = (SELECT job.seq FROM harbor.job WHERE job.id = $1)

-- name: query_after
-- $1 id
SELECT seq FROM harbor.job WHERE id = $1

-- part: shown
-- Whether the state to show is one of these. $12 now $13 states
        AND ($13::text[] IS NULL OR CASE state
            WHEN 'ready' THEN CASE WHEN due_at > $12 THEN 'scheduled' ELSE 'ready' END
            WHEN 'inflight' THEN CASE WHEN lease_expires_at <= $12 THEN 'lapsed'
                WHEN started_at IS NULL THEN 'claimed' ELSE 'running' END
            ELSE state END = ANY ($13))

-- part: matches
-- Filters for any job: conditions on `job` with `live`, `ended` or the rest of `record`. $3 queue $4 task $5 error
-- $7 tag $8 since $9 until $11 worker. With one more OR here, the planner would expect too few matches to stop early.
        AND ($3::text IS NULL OR job.queue LIKE $3)
        AND ($4::text IS NULL OR job.type LIKE $4)
        AND ($5::text IS NULL OR strpos(coalesce(last_error, ''), $5) > 0)
        AND ($7::text IS NULL OR EXISTS (SELECT FROM json_array_elements_text(job.tags::json) AS tag WHERE tag = $7))
        AND ($8::timestamptz IS NULL OR job.created_at >= $8)
        AND ($9::timestamptz IS NULL OR job.created_at < $9)
        AND coalesce(worker LIKE $11, $11::text IS NULL)

-- part: matches_ended
-- All filters; $6 reason and $10 fingerprint match dead jobs only.
-- include: matches
        AND ($6::text IS NULL OR dlq_reason LIKE $6)
        AND ($10::text IS NULL OR fingerprint = $10)

-- name: query
-- Matching jobs, the newest first: of each table no more than are wanted. LATERAL and LIMIT look up the rest of one
-- job after the other, until there are enough. $1 limit $2 before this seq $3-$13 see shown and matches
WITH found AS (
    (SELECT live.seq FROM harbor.live CROSS JOIN LATERAL (SELECT * FROM harbor.job WHERE job.seq = live.seq LIMIT 1) AS job
    WHERE live.seq < $2 AND $6::text IS NULL AND $10::text IS NULL
-- include: shown
-- include: matches
    ORDER BY live.seq DESC LIMIT $1)
    UNION ALL
    (SELECT ended.seq FROM harbor.ended CROSS JOIN LATERAL (SELECT * FROM harbor.job WHERE job.seq = ended.seq LIMIT 1) AS job
    WHERE ended.seq < $2 AND ($13::text[] IS NULL OR ended.state = ANY ($13))
-- include: matches_ended
    ORDER BY ended.seq DESC LIMIT $1)
)
SELECT record.* FROM (SELECT seq FROM found ORDER BY seq DESC LIMIT $1) AS page
CROSS JOIN LATERAL (SELECT * FROM harbor.record WHERE record.seq = page.seq LIMIT 1) AS record ORDER BY page.seq DESC

-- name: query_dead
-- As query, through the index of dead jobs. $1-$11
SELECT record.* FROM (
    SELECT ended.seq FROM harbor.ended CROSS JOIN LATERAL (SELECT * FROM harbor.job WHERE job.seq = ended.seq LIMIT 1) AS job
    WHERE ended.state = 'dlq' AND ended.seq < $2
-- include: matches_ended
    ORDER BY ended.seq DESC LIMIT $1
) AS page
CROSS JOIN LATERAL (SELECT * FROM harbor.record WHERE record.seq = page.seq LIMIT 1) AS record ORDER BY page.seq DESC

-- name: query_workflow
-- As query, through the index of one workflow. $14 workflow
SELECT job.* FROM (SELECT seq FROM harbor.job WHERE workflow_id = $14 AND (seq < $2) IS TRUE OFFSET 0) AS page
CROSS JOIN LATERAL (SELECT * FROM harbor.record WHERE record.seq = page.seq LIMIT 1) AS job
WHERE true
-- include: shown
-- include: matches_ended
ORDER BY page.seq DESC LIMIT $1

-- name: query_held
-- As query, for claimed and running jobs, through the index of leases. $1-$13
SELECT job.* FROM (
    SELECT seq FROM harbor.live
    WHERE state = 'inflight' AND (seq < $2) IS TRUE AND ($11::text IS NULL OR worker LIKE $11) OFFSET 0
) AS page
CROSS JOIN LATERAL (SELECT * FROM harbor.record WHERE record.seq = page.seq LIMIT 1) AS job
WHERE true
-- include: shown
-- include: matches_ended
ORDER BY page.seq DESC LIMIT $1

-- name: counts
-- Jobs by queue and shown state, and the first due time or lease expiry of each. $1 now
SELECT queue, CASE state
    WHEN 'ready' THEN CASE WHEN due_at > $1 THEN 'scheduled' ELSE 'ready' END
    WHEN 'inflight' THEN CASE WHEN lease_expires_at <= $1 THEN 'lapsed'
        WHEN started_at IS NULL THEN 'claimed' ELSE 'running' END
    ELSE state END AS shown, count(*), min(coalesce(lease_expires_at, due_at))
FROM harbor.live GROUP BY 1, 2
UNION ALL
SELECT queue, state, count(*), NULL FROM harbor.ended GROUP BY 1, 2

-- name: parents
-- The dependencies of jobs in order; the results of one job only if they are at most so many bytes in total.
-- PostgreSQL does not fetch a long result to find its length. LATERAL, OFFSET and LIMIT make it one index lookup per
-- row. $1 ids $2 most
SELECT given.id, job.id, edge.policy, edge.satisfied, coalesce(live.state, ended.state),
    CASE WHEN sum(octet_length(ended.result)) OVER (PARTITION BY given.id) <= $2 THEN ended.result END,
    coalesce(live.last_error, ended.last_error), coalesce(octet_length(ended.result), 0)
FROM unnest($1::text[]) AS given (id)
CROSS JOIN LATERAL (SELECT * FROM harbor.edge WHERE edge.child = given.id OFFSET 0) AS edge
CROSS JOIN LATERAL (SELECT seq, id FROM harbor.job WHERE job.id = edge.parent LIMIT 1) AS job
LEFT JOIN LATERAL (SELECT state, last_error FROM harbor.live WHERE live.seq = job.seq LIMIT 1) AS live ON true
LEFT JOIN LATERAL (SELECT state, last_error, result FROM harbor.ended WHERE ended.seq = job.seq LIMIT 1) AS ended ON true
ORDER BY given.id, edge.position

-- name: dead_groups
-- Matching dead jobs by cause, with the last one of each. $1 limit $2 workflow $3-$11 see matches
WITH dead AS (
    SELECT ended.seq, job.id, job.type, ended.completed_at, coalesce(ended.fingerprint, '') AS cause
    FROM harbor.ended CROSS JOIN LATERAL (SELECT * FROM harbor.job WHERE job.seq = ended.seq LIMIT 1) AS job
    WHERE ended.state = 'dlq' AND ($2::text IS NULL OR job.workflow_id = $2)
-- include: matches_ended
),
ranked AS (
    SELECT *, count(*) OVER alike AS number, min(completed_at) OVER alike AS first_at, row_number() OVER alike AS place
    FROM dead WINDOW alike AS (PARTITION BY cause ORDER BY completed_at DESC, id DESC
        ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)
)
SELECT cause, type, (SELECT last_error FROM harbor.ended WHERE ended.seq = ranked.seq), number, first_at, completed_at, id
FROM ranked WHERE place = 1 ORDER BY number DESC, cause LIMIT $1

-- name: workflows
-- Jobs of workflows by state, and the time of the first. One index entry is read per workflow passed on the way.
-- $1 limit $2 behind this id, if any $3 ids, if only those
WITH RECURSIVE walked (id, place) AS (
    SELECT $2::text COLLATE "C", 0 WHERE $3::text[] IS NULL
    UNION ALL
    SELECT CASE WHEN walked.id IS NULL
        THEN (SELECT workflow_id FROM harbor.job WHERE workflow_id IS NOT NULL ORDER BY workflow_id DESC LIMIT 1)
        ELSE (SELECT workflow_id FROM harbor.job WHERE workflow_id < walked.id ORDER BY workflow_id DESC LIMIT 1) END,
        place + 1
    FROM walked WHERE place < $1::bigint AND (place = 0 OR walked.id IS NOT NULL)
),
chosen AS (
    SELECT id FROM walked WHERE place > 0 AND id IS NOT NULL
    UNION
    SELECT id FROM unnest($3::text[]) AS given (id) WHERE $2 IS NULL OR id COLLATE "C" < $2
)
SELECT chosen.id, members.state, members.number, members.created_at
FROM chosen CROSS JOIN LATERAL (
    SELECT state, count(*) AS number, min(created_at) AS created_at
    -- Not as joins, for which whole tables might be read.
    FROM (
        SELECT job.created_at, coalesce(
            (SELECT live.state FROM harbor.live WHERE live.seq = job.seq),
            (SELECT ended.state FROM harbor.ended WHERE ended.seq = job.seq)) AS state
        FROM harbor.job WHERE job.workflow_id = chosen.id
    ) AS member GROUP BY state
) AS members
ORDER BY chosen.id DESC
