-- $1 ids
DELETE FROM harbor.edge WHERE child = ANY ($1::text[]) OR parent = ANY ($1::text[])
