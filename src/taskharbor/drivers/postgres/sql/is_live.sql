-- $1 id
SELECT FROM harbor.job JOIN harbor.live USING (seq) WHERE job.id = $1
