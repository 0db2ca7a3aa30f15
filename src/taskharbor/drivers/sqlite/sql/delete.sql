DELETE FROM job WHERE id = ?1 RETURNING id, idempotency_key, workflow_id
