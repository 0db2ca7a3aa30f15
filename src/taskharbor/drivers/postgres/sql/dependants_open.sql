-- Which of these jobs have dependants that still wait for them. $1 ids
SELECT DISTINCT parent FROM harbor.edge WHERE NOT satisfied AND parent = ANY ($1::text[])
