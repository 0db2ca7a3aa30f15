-- Jobs give their keys up; they are held before, in the order in which everybody takes keys. $1 ids $2 whether also those
-- that a cancel leaves their keys
WITH theirs AS MATERIALIZED (
    SELECT seq, id, idempotency_key FROM harbor.job
    WHERE id = ANY ($1::text[]) AND ($2 OR kept IS NULL) AND (idempotency_key IS NOT NULL OR key_expires_at IS NOT NULL)
),
held AS MATERIALIZED (
    SELECT key FROM harbor.keys WHERE key = ANY (ARRAY (SELECT idempotency_key FROM theirs)) ORDER BY key FOR UPDATE
),
freed AS (
    DELETE FROM harbor.keys USING theirs
    WHERE keys.key = theirs.idempotency_key AND keys.owner = theirs.id AND keys.key = ANY (ARRAY (SELECT key FROM held))
)
UPDATE harbor.job SET idempotency_key = NULL, key_expires_at = NULL FROM theirs WHERE job.seq = theirs.seq
