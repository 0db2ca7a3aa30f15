-- Forget the edges of jobs that are gone, in an order that nobody crosses who forgets the jobs at their other ends. $1 ids
WITH found AS MATERIALIZED (
    SELECT child, position FROM harbor.edge WHERE child = ANY ($1::text[])
    UNION
    SELECT child, position FROM harbor.edge WHERE parent = ANY ($1::text[])
),
held AS MATERIALIZED (
    SELECT child, position FROM harbor.edge JOIN found USING (child, position) ORDER BY child, position FOR UPDATE OF edge
)
DELETE FROM harbor.edge USING held WHERE edge.child = held.child AND edge.position = held.position
