-- Whether any lease lapsed that is not in line yet. ?1 now
SELECT 1 FROM job
WHERE state = 'inflight' AND lined = 0 AND stop_requested_at IS NULL AND lease_expires_at <= ?1 LIMIT 1
