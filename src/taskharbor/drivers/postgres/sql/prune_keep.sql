-- Keep what has ended of workflows until a later time. Somebody else who is at it has a reason. By LATERAL, OFFSET and
-- LIMIT all are looked up one after the other. $1 workflows $2 until
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
