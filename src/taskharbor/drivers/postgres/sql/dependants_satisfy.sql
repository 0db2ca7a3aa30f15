-- $1 children $2 positions
UPDATE harbor.edge SET satisfied = true
FROM unnest($1::text[], $2::integer[]) AS given (child, position)
WHERE edge.child = given.child AND edge.position = given.position
