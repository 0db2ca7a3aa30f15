-- Plain successes of one claim, at one time. ?1 when each started, by number ?2 what their tokens begin with ?3 now
-- ?4 keep_until
UPDATE job SET state = 'done', lined = 0, settled_token = token, settled_kind = 'ack', settled_at = ?3,
    token = NULL, lease_expires_at = NULL, started_at = run.value,
    attempts = 0, crashes = 0, unknown_put_backs = 0, last_error = NULL, failed_at = NULL, failures = NULL,
    completed_at = ?3, keep_until = ?4, result = NULL
FROM json_each(?1) AS run
WHERE seq = CAST(run.key AS INTEGER) AND token = ?2 AND state = 'inflight' AND lease_expires_at > ?3
