-- The dependencies of jobs in order; the results of one job's only if they are no more than so many bytes in all. Asked
-- for its length, PostgreSQL does not fetch a long result. By LATERAL, OFFSET and LIMIT all are looked up one after the
-- other. $1 ids $2 most
SELECT given.id, job.id, edge.policy, edge.satisfied, coalesce(live.state, ended.state),
    CASE WHEN sum(octet_length(ended.result)) OVER (PARTITION BY given.id) <= $2 THEN ended.result END,
    coalesce(live.last_error, ended.last_error), coalesce(octet_length(ended.result), 0)
FROM unnest($1::text[]) AS given (id)
CROSS JOIN LATERAL (SELECT * FROM harbor.edge WHERE edge.child = given.id OFFSET 0) AS edge
CROSS JOIN LATERAL (SELECT seq, id FROM harbor.job WHERE job.id = edge.parent LIMIT 1) AS job
LEFT JOIN LATERAL (SELECT state, last_error FROM harbor.live WHERE live.seq = job.seq LIMIT 1) AS live ON true
LEFT JOIN LATERAL (SELECT state, last_error, result FROM harbor.ended WHERE ended.seq = job.seq LIMIT 1) AS ended ON true
ORDER BY given.id, edge.position
