-- Hold what is live of these jobs until the step is over, in the order that heartbeats and settles take too: whoever
-- meets whom, one of them has to wait, and never both. Which they are, and in what state. $1 ids
SELECT job.id, live.state FROM harbor.live JOIN harbor.job USING (seq) WHERE job.id = ANY ($1::text[])
ORDER BY live.seq FOR UPDATE OF live
