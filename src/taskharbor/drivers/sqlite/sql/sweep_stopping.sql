SELECT id FROM job
WHERE state = 'inflight' AND lined = 0 AND lease_expires_at <= ?1 AND cancel_requested_at IS NOT NULL
ORDER BY cancel_requested_at, seq LIMIT ?2
