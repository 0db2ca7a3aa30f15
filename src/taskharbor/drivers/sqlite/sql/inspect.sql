-- Reading jobs, counts, dead groups and workflows.

-- part: record
-- The columns of a record, in the order of columns.RECORD.
    seq, id, type, queue, payload, priority, max_attempts, max_crashes, state, created_at, due_at, version, token,
    lease_expires_at, worker, claimed_at, run_at, expires_at, timeout, idempotency_key, key_expires_at, headers, tags,
    workflow_id, kept, attempts, crashes, unknown_put_backs, last_error, failed_at, failures, started_at, progress,
    stop_requested_at, stop_reason, stop_fingerprint, stop_keep_until, completed_at, result, dlq_reason, fingerprint, unmet,
    original_id, replays, settled_kind, CASE WHEN state = 'done' THEN completed_at ELSE settled_at END AS settled_at,
    settled_token, keep_until

-- name: get
-- ?1 id
SELECT
-- include: record
FROM job WHERE id = ?1

-- name: query_after
-- ?1 id
SELECT seq FROM job WHERE id = ?1

-- part: shown
-- Whether the state to show is one of these. ?12 now ?13 states
    AND (?13 IS NULL OR CASE state
        WHEN 'ready' THEN iif(due_at > ?12, 'scheduled', 'ready')
        WHEN 'inflight' THEN iif(lease_expires_at <= ?12, 'lapsed', iif(started_at IS NULL, 'claimed', 'running'))
        ELSE state END IN (SELECT value FROM json_each(?13)))

-- part: matches
-- The other filters. ?3 queue ?4 task ?5 error ?6 reason ?7 tag ?8 since ?9 until ?10 fingerprint
-- ?11 worker
    AND (?3 IS NULL OR queue GLOB ?3)
    AND (?4 IS NULL OR type GLOB ?4)
    AND (?5 IS NULL OR instr(coalesce(last_error, ''), ?5) > 0)
    AND (?6 IS NULL OR dlq_reason GLOB ?6)
    AND (?10 IS NULL OR fingerprint = ?10)
    AND (?7 IS NULL OR EXISTS (SELECT 1 FROM json_each(tags) WHERE value = ?7))
    AND (?8 IS NULL OR created_at >= ?8)
    AND (?9 IS NULL OR created_at < ?9)
    AND (?11 IS NULL OR worker GLOB ?11)

-- name: query
-- Matching jobs, the newest first. ?1 limit ?2 before this seq ?3-?13 see shown and matches
SELECT
-- include: record
FROM job
WHERE seq < ?2
-- include: shown
-- include: matches
ORDER BY seq DESC LIMIT ?1

-- name: query_dead
-- As query, through the index of dead jobs. ?1-?11
SELECT
-- include: record
FROM job INDEXED BY job_aside
WHERE state = 'dlq' AND seq < ?2
-- include: matches
ORDER BY seq DESC LIMIT ?1

-- name: query_workflow
-- As query, through the index of one workflow. ?14 workflow
SELECT
-- include: record
FROM job INDEXED BY job_workflow
WHERE workflow_id = ?14 AND seq < ?2
-- include: shown
-- include: matches
ORDER BY seq DESC LIMIT ?1

-- name: query_held
-- As query, for claimed and running jobs, through the indexes of leases: those that may lapse, and those that lapsed
-- by the clock of another host. ?1-?13
SELECT
-- include: record
FROM job
WHERE seq IN (
    SELECT seq FROM job INDEXED BY job_lease WHERE state = 'inflight' AND lined = 0
    UNION ALL
    SELECT seq FROM job INDEXED BY job_line WHERE lined > 0 AND lined = 2)
    AND seq < ?2
-- include: shown
-- include: matches
ORDER BY seq DESC LIMIT ?1

-- name: counts_line
-- Jobs in line by queue: all, those that are due, and the first due time. ?1 now
SELECT queue, count(*), sum(place <= ?1), min(place) FROM job WHERE lined > 0 AND lined = 1 GROUP BY queue

-- name: counts
-- Other jobs by queue and shown state, each part from an index of its own, and the first expiry of a lapsed lease.
-- ?1 now
SELECT queue, state, count(*), NULL FROM job WHERE keep_until IS NOT NULL GROUP BY 1, 2
UNION ALL
SELECT queue, 'waiting', count(*), NULL FROM job WHERE state = 'waiting' GROUP BY 1
UNION ALL
SELECT queue, iif(lease_expires_at <= ?1, 'lapsed', iif(started_at IS NULL, 'claimed', 'running')), count(*),
    min(iif(lease_expires_at <= ?1, lease_expires_at, NULL))
FROM job WHERE lined > 0 AND lined = 2 GROUP BY 1, 2
UNION ALL
SELECT queue, iif(lease_expires_at <= ?1, 'lapsed', iif(started_at IS NULL, 'claimed', 'running')), count(*),
    min(iif(lease_expires_at <= ?1, lease_expires_at, NULL))
FROM job WHERE state = 'inflight' AND lined = 0 GROUP BY 1, 2

-- name: parents
-- The dependencies of a job in order; their results only if they are at most so many bytes in total. SQLite does not
-- read a result to find its length. ?1 id ?2 most
SELECT job.id, edge.policy, edge.satisfied, job.state,
    iif((SELECT sum(length(job.result)) FROM edge JOIN job ON job.id = edge.parent WHERE edge.child = ?1) <= ?2,
        job.result, NULL),
    job.last_error, coalesce(length(job.result), 0)
FROM edge JOIN job ON job.id = edge.parent WHERE edge.child = ?1 ORDER BY edge.position

-- name: dead_groups
-- Matching dead jobs by cause, with the last one of each. ?1 limit ?2 workflow ?3-?11 see matches
WITH dead AS (
    SELECT seq, id, completed_at, coalesce(fingerprint, '') AS cause FROM job INDEXED BY job_aside
    WHERE state = 'dlq' AND (?2 IS NULL OR workflow_id = ?2)
-- include: matches
),
ranked AS (
    SELECT seq, cause, count(*) OVER alike AS number, min(completed_at) OVER alike AS first_at,
        row_number() OVER alike AS place
    FROM dead WINDOW alike AS (PARTITION BY cause ORDER BY completed_at DESC, id DESC
        ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)
)
SELECT ranked.cause, job.type, job.last_error, ranked.number, ranked.first_at, job.completed_at, job.id
FROM ranked JOIN job USING (seq) WHERE ranked.place = 1 ORDER BY ranked.number DESC, ranked.cause LIMIT ?1

-- name: workflows
-- Jobs of workflows by state, and the time of the first. One index entry is read per workflow passed on the way.
-- ?1 limit ?2 behind this id, if any ?3 ids, if only those
WITH RECURSIVE walked (id, place) AS (
    SELECT ?2, 0 WHERE ?3 IS NULL
    UNION ALL
    SELECT CASE WHEN walked.id IS NULL THEN (SELECT max(workflow_id) FROM job WHERE workflow_id IS NOT NULL)
        ELSE (SELECT max(workflow_id) FROM job WHERE workflow_id < walked.id) END, place + 1
    FROM walked WHERE place < ?1 AND (place = 0 OR walked.id IS NOT NULL)
),
chosen (id) AS (
    SELECT id FROM walked WHERE place > 0 AND id IS NOT NULL
    UNION
    SELECT value FROM json_each(?3) WHERE ?2 IS NULL OR value < ?2
)
SELECT chosen.id, job.state, count(*), min(job.created_at)
FROM chosen CROSS JOIN job INDEXED BY job_workflow ON job.workflow_id = chosen.id
GROUP BY 1, 2 ORDER BY 1 DESC
