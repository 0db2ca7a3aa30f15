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

-- name: prune
-- The next jobs, behind a position, that were kept long enough and that no dependant needs which is not done; a dead
-- one may be replayed, and reads the results again (K3, X8). A workflow goes as a whole with the first of its jobs
-- that is found. $1 now $2 $3 the position, by time and number $4 limit
SELECT job.id, job.workflow_id, ended.keep_until, ended.seq FROM harbor.ended JOIN harbor.job USING (seq)
-- By LATERAL and LIMIT it is looked up for one after the other, until there are enough, instead of joined as a whole.
LEFT JOIN LATERAL (
    SELECT true AS found
    FROM harbor.edge JOIN harbor.job AS child ON child.id = edge.child
    LEFT JOIN harbor.ended AS end_of_child ON end_of_child.seq = child.seq
    WHERE edge.parent = job.id AND (NOT edge.satisfied OR end_of_child.state IS DISTINCT FROM 'done') LIMIT 1
) AS needed ON true
WHERE ended.keep_until <= $1 AND (ended.keep_until, ended.seq) > ($2, $3) AND NOT coalesce(needed.found, false)
ORDER BY ended.keep_until, ended.seq LIMIT $4

-- name: prune_kept
-- Which of these workflows are kept, and until when: as long as the last of their records and their key, if that
-- expires; while one has not ended, until the next look (X8, I3). $1 workflows $2 now $3 the next look
SELECT given.id, kept.until FROM unnest($1::text[]) AS given (id) CROSS JOIN LATERAL (
    SELECT CASE WHEN bool_or(ended.seq IS NULL) THEN $3::timestamptz
        ELSE greatest(max(ended.keep_until), (SELECT max(expires_at) FROM harbor.keys WHERE owner = given.id)) END AS until
    FROM harbor.job LEFT JOIN LATERAL (
        SELECT seq, keep_until FROM harbor.ended WHERE ended.seq = job.seq LIMIT 1
    ) AS ended ON true
    WHERE job.workflow_id = given.id
) AS kept
WHERE kept.until > $2

-- name: prune_keep
-- Keep the ended jobs of workflows until a later time; rows that another transaction holds are skipped. LATERAL,
-- OFFSET and LIMIT make it one index lookup per row. $1 workflows $2 until
WITH early AS MATERIALIZED (
    SELECT ended.seq, given.until FROM unnest($1::text[], $2::timestamptz[]) AS given (id, until)
    CROSS JOIN LATERAL (SELECT seq FROM harbor.job WHERE job.workflow_id = given.id OFFSET 0) AS job
    CROSS JOIN LATERAL (SELECT seq, keep_until FROM harbor.ended WHERE ended.seq = job.seq LIMIT 1) AS ended
    WHERE ended.keep_until < given.until
),
held AS MATERIALIZED (
    SELECT seq FROM harbor.ended WHERE seq = ANY (ARRAY (SELECT seq FROM early)) FOR UPDATE SKIP LOCKED
)
UPDATE harbor.ended SET keep_until = early.until FROM early
WHERE ended.seq = early.seq AND ended.seq = ANY (ARRAY (SELECT seq FROM held))

-- name: prune_members
-- The members of workflows, the last ones first: dependants before their parents. $1 workflows $2 limit for each
SELECT given.id, member.id FROM unnest($1::text[]) AS given (id) CROSS JOIN LATERAL (
    SELECT job.id, job.seq FROM harbor.job WHERE job.workflow_id = given.id ORDER BY job.seq DESC LIMIT $2
) AS member
ORDER BY given.id, member.seq DESC

-- name: prune_delete
-- Delete jobs, if they are still due for it, and their keys. $1 ids $2 now
WITH gone AS (
    DELETE FROM harbor.ended USING harbor.job
    WHERE job.id = ANY ($1::text[]) AND ended.seq = job.seq AND ended.keep_until <= $2
    RETURNING ended.seq, job.id, job.idempotency_key
),
held AS MATERIALIZED (
    SELECT key FROM harbor.keys WHERE key = ANY (ARRAY (SELECT idempotency_key FROM gone)) ORDER BY key FOR UPDATE
),
freed AS (
    DELETE FROM harbor.keys USING gone
    WHERE keys.key = gone.idempotency_key AND keys.owner = gone.id AND keys.key = ANY (ARRAY (SELECT key FROM held))
)
DELETE FROM harbor.job USING gone WHERE job.seq = gone.seq RETURNING job.id, job.workflow_id
