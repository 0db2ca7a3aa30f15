-- Writing the outcomes of runs, fenced by token and expiry.

-- part: done
-- Of a success the end is `completed_at`, which is why it needs no `settled_at`. ?3 now ?4 keep_until ?5 started_at
UPDATE job SET state = 'done', lined = 0, settled_token = token, settled_kind = 'ack', settled_at = NULL,
    token = NULL, lease_expires_at = NULL, started_at = ?5,
    attempts = 0, crashes = 0, unknown_put_backs = 0, last_error = NULL, failed_at = NULL, failures = NULL,
    completed_at = ?3, keep_until = ?4, result = NULL

-- name: settle_done
-- Plain successes of one claim, started and ended at one time. ?1 numbers ?2 token prefix ?3 now ?4 keep_until
-- ?5 started_at
-- include: done
WHERE seq IN (SELECT value FROM json_each(?1)) AND token = ?2 AND state = 'inflight' AND lease_expires_at > ?3

-- name: settle_done_range
-- As settle_done, for numbers without a gap. ?1 first ?2 … ?5 as settle_done ?6 last
-- include: done
WHERE seq BETWEEN ?1 AND ?6 AND token = ?2 AND state = 'inflight' AND lease_expires_at > ?3

-- part: settled
-- What every other outcome writes. ?4 attempts ?5 crashes ?6 put-backs ?7 error ?8 failed_at ?9 failures ?11 started_at
    settled_token = token, token = NULL, lease_expires_at = NULL, started_at = ?11, attempts = ?4, crashes = ?5,
    unknown_put_backs = ?6, last_error = ?7, failed_at = ?8, failures = ?9

-- part: fenced
-- ?1 id ?2 token ?3 now
WHERE id = ?1 AND token || seq || ' ' || id = ?2 AND state = 'inflight' AND lease_expires_at > ?3

-- name: settle_ack
-- ?1-?9 and ?11 see settled and fenced ?10 keep_until ?12 result
UPDATE job SET state = 'done', lined = 0, settled_kind = 'ack', settled_at = NULL, completed_at = ?3, keep_until = ?10,
    result = ?12,
-- include: settled
-- include: fenced

-- name: settle_fail
-- As settle_ack. ?12 reason ?13 fingerprint
UPDATE job SET state = 'dlq', lined = 0, settled_kind = 'fail', settled_at = ?3, completed_at = ?3, keep_until = ?10,
    dlq_reason = ?12, fingerprint = ?13,
-- include: settled
-- include: fenced

-- name: settle_cancel
-- As settle_ack. ?12 keep_until of kept jobs
UPDATE job SET state = 'cancelled', lined = 0, settled_kind = 'cancel', settled_at = ?3, completed_at = ?3,
    keep_until = iif(kept, ?12, ?10), key_expires_at = iif(kept, key_expires_at, NULL),
-- include: settled
-- include: fenced
RETURNING state, iif(kept, NULL, idempotency_key)

-- name: settle_put_back
-- Back in line, or to the end that was requested: cancelled, or dead (T3). As settle_cancel. ?13 run_at
UPDATE job SET state = CASE WHEN stop_requested_at IS NULL THEN 'ready' WHEN stop_reason IS NULL THEN 'cancelled' ELSE 'dlq' END,
    lined = stop_requested_at IS NULL, settled_kind = 'put_back', settled_at = ?3,
    run_at = iif(stop_requested_at IS NULL, ?13, run_at),
    due_at = iif(stop_requested_at IS NULL, ?13, due_at),
    place = iif(stop_requested_at IS NULL, ?13, place),
    progress = iif(stop_requested_at IS NULL, NULL, progress),
    completed_at = iif(stop_requested_at IS NULL, NULL, ?3),
    keep_until = CASE WHEN stop_requested_at IS NULL THEN NULL WHEN kept THEN ?12 ELSE coalesce(stop_keep_until, ?10) END,
    dlq_reason = stop_reason, fingerprint = stop_fingerprint,
    key_expires_at = iif(stop_requested_at IS NULL OR stop_reason IS NOT NULL OR kept, key_expires_at, NULL),
-- include: settled
-- include: fenced
RETURNING state, iif(state = 'cancelled' AND NOT kept, idempotency_key, NULL)
