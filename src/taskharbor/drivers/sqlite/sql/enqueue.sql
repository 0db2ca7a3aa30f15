INSERT INTO job (
    id, type, queue, payload, priority, max_attempts, max_crashes, state, lined, created_at, due_at, place, run_at,
    expires_at, timeout, idempotency_key, key_expires_at, headers, tags, workflow_id, unmet, kept
) VALUES (
    ?1, ?2, ?3, ?4, ?5, ?6, ?7, iif(?18 > 0, 'waiting', 'ready'), ?18 = 0, ?8, ?9, ?9, ?10,
    ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19
)
ON CONFLICT (id) DO NOTHING
