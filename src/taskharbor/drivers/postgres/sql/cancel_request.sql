-- Ask the holder of a job to stop. By its token, for the index of states would be read as a whole. $1 id $2 now
UPDATE harbor.live SET cancel_requested_at = $2 FROM harbor.job
WHERE job.id = $1 AND live.seq = job.seq AND live.token IS NOT NULL AND live.cancel_requested_at IS NULL
