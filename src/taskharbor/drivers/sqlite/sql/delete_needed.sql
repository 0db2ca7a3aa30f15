SELECT EXISTS (
    SELECT 1 FROM edge JOIN job ON job.id = edge.child WHERE edge.parent = ?1 AND job.completed_at IS NULL
)
