-- Ask the holder to stop; a cancel goes before a dead letter that was asked for. ?1 id ?2 now
UPDATE job SET lined = 0, stop_requested_at = ?2, stop_reason = NULL, stop_fingerprint = NULL, stop_keep_until = NULL
WHERE id = ?1 AND state = 'inflight' AND (stop_requested_at IS NULL OR stop_reason IS NOT NULL)
