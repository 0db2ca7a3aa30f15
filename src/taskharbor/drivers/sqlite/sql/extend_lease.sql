-- ?1 id ?2 token ?3 now ?4 expiry ?5 started_at ?6 progress
UPDATE job SET lease_expires_at = max(lease_expires_at, ?4), lined = 0,
    started_at = coalesce(?5, started_at), progress = coalesce(?6, progress)
WHERE id = ?1 AND token || seq || ' ' || id = ?2 AND state = 'inflight' AND lease_expires_at > ?3
RETURNING lease_expires_at, stop_requested_at IS NOT NULL AND stop_reason IS NULL, stop_reason IS NOT NULL
