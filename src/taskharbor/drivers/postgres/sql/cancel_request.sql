-- Ask the holders of jobs to stop. $1 ids $2 now
WITH given AS MATERIALIZED (
    SELECT seq FROM harbor.job WHERE id = ANY ($1::text[])
)
UPDATE harbor.live SET cancel_requested_at = $2 FROM given
WHERE live.seq = given.seq AND live.token IS NOT NULL AND live.cancel_requested_at IS NULL
