-- $1 children $2 positions $3 parents $4 policies $5 satisfied
INSERT INTO harbor.edge (child, position, parent, policy, satisfied)
SELECT * FROM unnest($1::text[], $2::integer[], $3::text[], $4::text[], $5::boolean[])
