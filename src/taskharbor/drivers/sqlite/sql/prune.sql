-- What comes next, behind a place, of what was kept long enough and is needed by no dependant that is not done: one that
-- is dead may be replayed, and takes the results again (K3, X8). Of a workflow all go with the first that is found.
-- ?1 now ?2 ?3 the place, by time and number ?4 limit
SELECT seq, workflow_id, keep_until FROM job AS old
WHERE keep_until IS NOT NULL AND keep_until <= ?1 AND (keep_until, seq) > (?2, ?3)
    AND NOT EXISTS (
        SELECT 1 FROM edge JOIN job AS child ON child.id = edge.child
        WHERE edge.parent = old.id AND (edge.satisfied = 0 OR child.state <> 'done'))
ORDER BY keep_until, seq LIMIT ?4
