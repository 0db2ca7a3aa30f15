-- Ask the holders of jobs to stop, so that these die; the first request counts (T3, Q4). $1 ids $2 reasons
-- $3 fingerprints $4 keep_until $5 now
UPDATE harbor.live SET stop_requested_at = $5, stop_reason = given.reason, stop_fingerprint = given.cause,
    stop_keep_until = given.until
FROM unnest($1::text[], $2::text[], $3::text[], $4::timestamptz[]) AS given (id, reason, cause, until)
    JOIN harbor.job USING (id)
WHERE live.seq = job.seq AND live.token IS NOT NULL AND live.stop_requested_at IS NULL
