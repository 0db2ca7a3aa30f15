-- The key of a workflow goes with its last record. Two that remove a record each must not look at the same time, so the
-- keys are held before. $1 workflows
DELETE FROM harbor.keys
WHERE owner = ANY ($1::text[]) AND NOT EXISTS (SELECT FROM harbor.job WHERE job.workflow_id = keys.owner)
