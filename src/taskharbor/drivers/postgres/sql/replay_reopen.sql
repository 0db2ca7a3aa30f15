-- Jobs that were put back wait once more for parents whose failure they had collected, and that run again: held, for one
-- that is just ending tells nobody any more. By LATERAL, OFFSET and LIMIT all are looked up one after the other. $1 ids
WITH collected AS MATERIALIZED (
    SELECT edge.child, edge.position, job.seq FROM unnest($1::text[]) AS given (id)
    CROSS JOIN LATERAL (
        SELECT child, position, parent FROM harbor.edge WHERE edge.child = given.id AND edge.satisfied OFFSET 0
    ) AS edge
    CROSS JOIN LATERAL (SELECT seq FROM harbor.job WHERE job.id = edge.parent LIMIT 1) AS job
),
running AS MATERIALIZED (
    SELECT seq FROM harbor.live WHERE seq = ANY (ARRAY (SELECT seq FROM collected)) ORDER BY seq FOR UPDATE
),
awaited AS (
    UPDATE harbor.live SET awaited = true WHERE seq = ANY (ARRAY (SELECT seq FROM running))
)
UPDATE harbor.edge SET satisfied = false FROM collected
WHERE edge.child = collected.child AND edge.position = collected.position
    AND collected.seq = ANY (ARRAY (SELECT seq FROM running))
RETURNING edge.child
