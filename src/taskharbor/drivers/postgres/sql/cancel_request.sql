-- $1 id $2 now
UPDATE harbor.live SET cancel_requested_at = $2 FROM harbor.job
WHERE job.id = $1 AND live.seq = job.seq AND live.state = 'inflight' AND live.cancel_requested_at IS NULL
