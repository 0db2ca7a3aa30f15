SELECT id FROM job
WHERE state = 'inflight' AND lined = 0 AND lease_expires_at <= ?1 AND stop_requested_at IS NOT NULL
ORDER BY stop_requested_at, seq LIMIT ?2
