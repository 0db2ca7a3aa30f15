-- ?1 numbers
DELETE FROM job WHERE seq IN (SELECT value FROM json_each(?1)) RETURNING id, idempotency_key, workflow_id
