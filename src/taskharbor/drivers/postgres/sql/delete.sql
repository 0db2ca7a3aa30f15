-- Forget jobs that have ended, and their keys. $1 ids
WITH gone AS (
    DELETE FROM harbor.ended USING harbor.job WHERE job.id = ANY ($1::text[]) AND ended.seq = job.seq RETURNING ended.seq
),
freed AS (
    DELETE FROM harbor.keys USING harbor.job
    WHERE job.id = ANY ($1::text[]) AND keys.key = job.idempotency_key AND keys.owner = job.id
)
DELETE FROM harbor.job USING gone WHERE job.seq = gone.seq RETURNING job.id, job.workflow_id
