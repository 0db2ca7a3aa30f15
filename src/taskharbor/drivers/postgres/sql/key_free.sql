-- Cancelled jobs give their keys up (T3). $1 ids
WITH freed AS (
    DELETE FROM harbor.keys USING harbor.job
    WHERE job.id = ANY ($1::text[]) AND keys.key = job.idempotency_key AND keys.owner = job.id
)
UPDATE harbor.job SET idempotency_key = NULL, key_expires_at = NULL
WHERE id = ANY ($1::text[]) AND (idempotency_key IS NOT NULL OR key_expires_at IS NOT NULL)
