-- Plain successes of one claim, at one time. ?1 numbers ?2 what their tokens begin with ?3 now ?4 keep_until
UPDATE job SET state = 'done', lined = 0, settled_token = token, settled_kind = 'ack', settled_at = ?3,
    token = NULL, lease_expires_at = NULL, started_at = run_started(seq),
    attempts = 0, crashes = 0, unknown_put_backs = 0, last_error = NULL, failed_at = NULL, failures = NULL,
    completed_at = ?3, keep_until = ?4, result = NULL
WHERE seq IN (SELECT value FROM json_each(?1)) AND token = ?2 AND state = 'inflight' AND lease_expires_at > ?3
