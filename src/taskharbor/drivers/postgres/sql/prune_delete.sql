-- Forget jobs whose time has come, if that is so still, and their keys. $1 ids $2 now
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
