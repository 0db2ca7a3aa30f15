-- Until when a workflow stays: as long as the last of its records and its key, if that runs out; while one has not ended,
-- until the next look (X8, I3). ?1 workflow ?2 the next look
SELECT CASE WHEN EXISTS (SELECT 1 FROM job WHERE workflow_id = ?1 AND keep_until IS NULL) THEN ?2 ELSE max(
    (SELECT max(keep_until) FROM job WHERE workflow_id = ?1),
    coalesce((SELECT max(expires_at) FROM keys WHERE owner = ?1), 0)) END
