SELECT job.id, edge.policy, edge.satisfied, job.state, job.result, job.last_error
FROM edge JOIN job ON job.id = edge.parent WHERE edge.child = ?1 ORDER BY edge.position
