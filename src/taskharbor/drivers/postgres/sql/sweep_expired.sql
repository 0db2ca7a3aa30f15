-- $1 now $2 limit
SELECT job.id FROM harbor.live JOIN harbor.job USING (seq)
WHERE live.expires_at <= $1 AND (live.lease_expires_at IS NULL OR live.lease_expires_at <= $1)
ORDER BY live.expires_at, job.id LIMIT $2 FOR UPDATE OF live SKIP LOCKED
