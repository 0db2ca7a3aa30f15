-- Ask the holders of jobs to stop; a cancel goes before a dead letter that was asked for (T3). $1 ids $2 now
WITH given AS MATERIALIZED (
    SELECT seq FROM harbor.job WHERE id = ANY ($1::text[])
)
UPDATE harbor.live SET stop_requested_at = $2, stop_reason = NULL, stop_fingerprint = NULL, stop_keep_until = NULL FROM given
WHERE live.seq = given.seq AND live.token IS NOT NULL AND (live.stop_requested_at IS NULL OR live.stop_reason IS NOT NULL)
