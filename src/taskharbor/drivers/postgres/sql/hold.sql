-- Hold what is live of these jobs until the step is over, in the order that heartbeats and settles take too: whoever
-- meets whom, one of them has to wait, and never both. $1 ids
SELECT live.seq FROM harbor.live JOIN harbor.job USING (seq) WHERE job.id = ANY ($1::text[])
ORDER BY live.seq FOR UPDATE OF live
