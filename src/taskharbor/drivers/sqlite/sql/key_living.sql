-- A key holds its place until it expires, and at least until its job, or the last one of its workflow, has ended (I2).
-- ?1 key ?2 now
SELECT owner, digest FROM keys WHERE key = ?1 AND (expires_at IS NULL OR expires_at > ?2
    OR EXISTS (SELECT 1 FROM job WHERE id = keys.owner AND completed_at IS NULL)
    OR EXISTS (SELECT 1 FROM job WHERE workflow_id = keys.owner AND keep_until IS NULL))
