-- Hold what is live of the parents of these jobs, before the jobs themselves, as those do that end a parent. By LATERAL,
-- OFFSET and LIMIT all are looked up one after the other. $1 ids
WITH parents AS MATERIALIZED (
    SELECT job.seq FROM unnest($1::text[]) AS given (id)
    CROSS JOIN LATERAL (SELECT parent FROM harbor.edge WHERE edge.child = given.id OFFSET 0) AS edge
    CROSS JOIN LATERAL (SELECT seq FROM harbor.job WHERE job.id = edge.parent LIMIT 1) AS job
)
SELECT seq FROM harbor.live WHERE seq = ANY (ARRAY (SELECT seq FROM parents)) ORDER BY seq FOR UPDATE
