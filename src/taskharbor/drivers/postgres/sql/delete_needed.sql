-- Whether an unfinished dependant needs the job. $1 id
SELECT 1 FROM harbor.edge JOIN harbor.job ON job.id = edge.child LEFT JOIN harbor.live USING (seq)
WHERE edge.parent = $1 AND (NOT edge.satisfied OR live.seq IS NOT NULL) LIMIT 1
