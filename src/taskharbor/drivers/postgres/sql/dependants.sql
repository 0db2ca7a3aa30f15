-- Dependants that still wait for these jobs; held until the step is over, in an order that nobody crosses. $1 ids
SELECT parent, child, position, policy FROM harbor.edge WHERE NOT satisfied AND parent = ANY ($1::text[])
ORDER BY child, position FOR UPDATE
