-- Whether a dependant is not done: one that is dead may be replayed, and takes the results again (K3).
SELECT EXISTS (
    SELECT 1 FROM edge JOIN job ON job.id = edge.child WHERE edge.parent = ?1 AND (edge.satisfied = 0 OR job.state <> 'done')
)
