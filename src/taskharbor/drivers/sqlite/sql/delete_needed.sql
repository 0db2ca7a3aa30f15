SELECT EXISTS (
    SELECT 1 FROM edge JOIN job ON job.id = edge.child
    WHERE edge.parent = ?1 AND (edge.satisfied = 0 OR job.completed_at IS NULL)
)
