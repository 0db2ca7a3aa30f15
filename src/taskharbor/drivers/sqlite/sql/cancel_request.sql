UPDATE job SET lined = 0, cancel_requested_at = ?2
WHERE id = ?1 AND state = 'inflight' AND cancel_requested_at IS NULL
