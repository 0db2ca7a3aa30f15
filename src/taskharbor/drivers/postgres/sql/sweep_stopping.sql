-- $1 now $2 limit
SELECT job.id FROM harbor.live JOIN harbor.job USING (seq)
WHERE live.state = 'inflight' AND live.lease_expires_at <= $1 AND live.stop_requested_at IS NOT NULL
ORDER BY live.stop_requested_at, live.seq LIMIT $2 FOR UPDATE OF live SKIP LOCKED
