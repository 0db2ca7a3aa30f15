-- Claiming due jobs and extending leases.

-- name: paused
SELECT queue FROM paused

-- part: claimable
-- A condition on a job in line: it is due, held by no live lease, not expired and not asked to stop. ?1 now
lined > 0 AND queue = ?2 AND priority = ?3 AND place <= ?1
    AND (lease_expires_at IS NULL OR lease_expires_at <= ?1)
    AND (expires_at IS NULL OR expires_at > ?1) AND stop_requested_at IS NULL

-- name: reserve
-- The best due jobs of one queue and priority: what a claim of a plain job needs, and whether there is more to it.
-- ?1 now ?2 queue ?3 priority ?4 limit
SELECT
    seq, id, type, queue, payload, priority, max_attempts, max_crashes, created_at, due_at, run_at, workflow_id,
    version > 0 OR kept OR coalesce(expires_at, timeout, idempotency_key, key_expires_at, headers, tags, original_id,
        started_at, progress, last_error, failed_at, failures, settled_token) IS NOT NULL
FROM job
WHERE
-- include: claimable
ORDER BY place, seq LIMIT ?4

-- name: reserve_seqs
-- As reserve, but only their numbers. ?1 now ?2 queue ?3 priority ?4 limit
SELECT seq FROM job
WHERE
-- include: claimable
ORDER BY place, seq LIMIT ?4

-- name: reserve_peek
-- Whether a queue and priority has a job to claim. ?1 now ?2 queue ?3 priority
SELECT 1 FROM job
WHERE
-- include: claimable
ORDER BY place, seq LIMIT 1

-- name: reserve_priority
-- The next lower priority in the line of a queue. ?1 queue ?2 priority before
SELECT max(priority) FROM job WHERE lined > 0 AND queue = ?1 AND priority < ?2

-- name: reserve_by_id
-- The number of a job, if it can be claimed. ?1 now ?2 id
SELECT seq FROM job
WHERE id = ?2 AND (state = 'inflight' OR (state = 'ready' AND due_at <= ?1))
    AND queue NOT IN (SELECT queue FROM paused)
    AND (lease_expires_at IS NULL OR lease_expires_at <= ?1)
    AND (expires_at IS NULL OR expires_at > ?1) AND stop_requested_at IS NULL

-- name: reserve_row
-- One job by its number. ?1 seq
SELECT
-- include: record
FROM job WHERE seq = ?1

-- name: reserve_lapsed
-- Whether any lease lapsed whose job is not in line yet. ?1 now
SELECT 1 FROM job
WHERE state = 'inflight' AND lined = 0 AND stop_requested_at IS NULL AND lease_expires_at <= ?1 LIMIT 1

-- name: reserve_line_up
-- Put jobs whose leases lapsed in line: in front the first time, later by their expiry (D11). ?1 now ?2 the front
UPDATE job SET lined = 2, place = iif(crashes = 0, ?2, lease_expires_at)
WHERE state = 'inflight' AND lined = 0 AND stop_requested_at IS NULL AND lease_expires_at <= ?1

-- part: claimed
-- ?2 token prefix ?3 expiry ?4 worker ?5 now
UPDATE job SET state = 'inflight', lined = 0, place = 0, version = version + 1, token = ?2, lease_expires_at = ?3,
    worker = ?4, claimed_at = ?5, started_at = NULL, progress = NULL, crashes = crashes + (state = 'inflight'),
    run_at = iif(state = 'inflight', NULL, run_at)

-- name: claim
-- Take ready jobs, or take over lapsed ones (D5). ?1 numbers ?2 token prefix ?3 expiry ?4 worker ?5 now
-- include: claimed
WHERE seq IN (SELECT value FROM json_each(?1))

-- name: claim_range
-- As claim, for numbers without a gap: SQLite need not look each one up. ?1 first ?2 … ?5 as claim ?6 last
-- include: claimed
WHERE seq BETWEEN ?1 AND ?6

-- name: extend_lease
-- ?1 id ?2 token ?3 now ?4 expiry ?5 started_at ?6 progress
UPDATE job SET lease_expires_at = max(lease_expires_at, ?4), lined = 0,
    started_at = coalesce(?5, started_at), progress = coalesce(?6, progress)
WHERE id = ?1 AND token || seq || ' ' || id = ?2 AND state = 'inflight' AND lease_expires_at > ?3
RETURNING lease_expires_at, stop_requested_at IS NOT NULL AND stop_reason IS NULL, stop_reason IS NOT NULL

-- name: next_due
-- The first due time of each queue and priority, or their first lease to expire. ?1 queues
WITH RECURSIVE open (queue) AS (
    SELECT value FROM json_each(?1) WHERE value NOT IN (SELECT queue FROM paused)
),
rank (queue, priority) AS (
    SELECT queue, (SELECT max(priority) FROM job WHERE lined > 0 AND queue = open.queue) FROM open
    UNION ALL
    SELECT queue, (SELECT max(priority) FROM job WHERE lined > 0 AND queue = rank.queue AND priority < rank.priority)
    FROM rank WHERE priority IS NOT NULL
)
SELECT min(due) FROM (
    SELECT (SELECT min(place) FROM job
        WHERE lined > 0 AND queue = rank.queue AND priority = rank.priority) AS due
    FROM rank WHERE priority IS NOT NULL
    UNION ALL
    SELECT min(lease_expires_at) FROM job
    WHERE state = 'inflight' AND lined = 0 AND stop_requested_at IS NULL AND queue IN (SELECT queue FROM open)
)
