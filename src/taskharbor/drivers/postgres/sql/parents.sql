-- $1 child
SELECT job.id, edge.policy, edge.satisfied, coalesce(live.state, ended.state), ended.result,
    coalesce(live.last_error, ended.last_error)
FROM harbor.edge JOIN harbor.job ON job.id = edge.parent LEFT JOIN harbor.live USING (seq) LEFT JOIN harbor.ended USING (seq)
WHERE edge.child = $1 ORDER BY edge.position
