-- Jobs as bytes and numbers, the newest first, so that they can be read however damaged. ?1 up to this seq ?2 limit
SELECT
    seq, CAST(id AS BLOB), CAST(type AS BLOB), CAST(queue AS BLOB), CAST(idempotency_key AS BLOB),
    CAST(workflow_id AS BLOB), CAST(original_id AS BLOB), CAST(worker AS BLOB), CAST(headers AS BLOB), CAST(tags AS BLOB),
    CAST(failures AS BLOB), CAST(progress AS BLOB), created_at, due_at, run_at, expires_at, key_expires_at, claimed_at,
    started_at, stop_requested_at, CAST(state AS BLOB), CAST(token AS BLOB), CAST(settled_token AS BLOB),
    CAST(settled_kind AS BLOB), CAST(stop_reason AS BLOB), CAST(stop_fingerprint AS BLOB), CAST(last_error AS BLOB),
    CAST(dlq_reason AS BLOB), CAST(fingerprint AS BLOB), lease_expires_at, settled_at, stop_keep_until, failed_at,
    completed_at, keep_until, place
FROM job WHERE seq <= ?1 ORDER BY seq DESC LIMIT ?2
