-- $1 ids
SELECT * FROM harbor.record WHERE id = ANY ($1::text[])
