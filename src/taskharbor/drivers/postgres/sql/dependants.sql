-- Dependants that still wait for these jobs. By LATERAL and OFFSET they are looked up for one after the other, whatever
-- the server takes the table for. $1 ids
SELECT given.id, open.child, open.position, open.policy
FROM unnest($1::text[]) AS given (id) CROSS JOIN LATERAL (
    SELECT child, position, policy FROM harbor.edge WHERE edge.parent = given.id AND NOT satisfied OFFSET 0
) AS open
