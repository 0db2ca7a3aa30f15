-- The dependencies of a job in order; their results only if these are no more than so many bytes in all. Asked for its
-- length, SQLite does not read a result. ?1 id ?2 most
SELECT job.id, edge.policy, edge.satisfied, job.state,
    iif((SELECT sum(length(job.result)) FROM edge JOIN job ON job.id = edge.parent WHERE edge.child = ?1) <= ?2,
        job.result, NULL),
    job.last_error, coalesce(length(job.result), 0)
FROM edge JOIN job ON job.id = edge.parent WHERE edge.child = ?1 ORDER BY edge.position
