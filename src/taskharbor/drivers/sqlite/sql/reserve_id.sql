-- The number of a job, if it can be claimed. ?1 now ?2 id
SELECT seq FROM job
WHERE id = ?2 AND (state = 'inflight' OR (state = 'ready' AND due_at <= ?1))
    AND queue NOT IN (SELECT queue FROM paused)
    AND (lease_expires_at IS NULL OR lease_expires_at <= ?1)
    AND (expires_at IS NULL OR expires_at > ?1) AND stop_requested_at IS NULL
