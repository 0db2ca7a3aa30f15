-- Whether a queue and priority has a job to claim. ?1 now ?2 queue ?3 priority
SELECT 1 FROM job
WHERE lined > 0 AND queue = ?2 AND priority = ?3 AND place <= ?1
    AND (lease_expires_at IS NULL OR lease_expires_at <= ?1)
    AND (expires_at IS NULL OR expires_at > ?1) AND stop_requested_at IS NULL
ORDER BY place, seq LIMIT 1
