-- Whether a dependant is not done: one that is dead may be replayed, and takes the results again (K3). $1 id
SELECT 1 FROM harbor.edge JOIN harbor.job ON job.id = edge.child LEFT JOIN harbor.ended USING (seq)
WHERE edge.parent = $1 AND (NOT edge.satisfied OR ended.state IS DISTINCT FROM 'done') LIMIT 1
