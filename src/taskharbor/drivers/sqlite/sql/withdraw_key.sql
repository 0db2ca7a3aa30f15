UPDATE job SET idempotency_key = NULL WHERE id = ?1
