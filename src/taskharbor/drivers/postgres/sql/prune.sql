-- What comes next, behind a place, of what was kept long enough and is needed by no dependant that is not done: one that
-- is dead may be replayed, and takes the results again (K3, X8). Of a workflow all go with the first that is found.
-- $1 now $2 $3 the place, by time and number $4 limit
SELECT job.id, job.workflow_id, ended.keep_until, ended.seq FROM harbor.ended JOIN harbor.job USING (seq)
-- By LATERAL and LIMIT it is looked up for one after the other, until there are enough, instead of joined as a whole.
LEFT JOIN LATERAL (
    SELECT true AS found
    FROM harbor.edge JOIN harbor.job AS child ON child.id = edge.child
    LEFT JOIN harbor.ended AS end_of_child ON end_of_child.seq = child.seq
    WHERE edge.parent = job.id AND (NOT edge.satisfied OR end_of_child.state IS DISTINCT FROM 'done') LIMIT 1
) AS needed ON true
WHERE ended.keep_until <= $1 AND (ended.keep_until, ended.seq) > ($2, $3) AND NOT coalesce(needed.found, false)
ORDER BY ended.keep_until, ended.seq LIMIT $4
