-- Somebody new waits for these jobs. In the order that heartbeats and settles take too. $1 ids
UPDATE harbor.live SET awaited = true FROM (
    SELECT live.seq FROM harbor.live JOIN harbor.job USING (seq) WHERE job.id = ANY ($1::text[])
    ORDER BY live.seq FOR UPDATE OF live
) AS held
WHERE live.seq = held.seq
