-- The key of a workflow goes with its last record.
DELETE FROM keys WHERE owner = ?1 AND NOT EXISTS (SELECT 1 FROM job WHERE workflow_id = ?1)
