-- Ask the holder to stop; the first request counts. ?1 id ?2 now ?3 reason ?4 fingerprint ?5 keep_until
UPDATE job SET lined = 0, stop_requested_at = ?2, stop_reason = ?3, stop_fingerprint = ?4, stop_keep_until = ?5
WHERE id = ?1 AND state = 'inflight' AND stop_requested_at IS NULL
