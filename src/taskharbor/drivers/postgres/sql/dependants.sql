-- Dependants that still wait for these jobs. $1 ids
SELECT parent, child, position, policy FROM harbor.edge WHERE NOT satisfied AND parent = ANY ($1::text[])
