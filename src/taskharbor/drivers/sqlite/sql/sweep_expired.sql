SELECT id FROM job
WHERE expires_at IS NOT NULL AND completed_at IS NULL AND expires_at <= ?1
    AND (lease_expires_at IS NULL OR lease_expires_at <= ?1)
ORDER BY expires_at, id LIMIT ?2
