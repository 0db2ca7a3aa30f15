-- $1 ids
WITH of_children AS (
    DELETE FROM harbor.edge WHERE child = ANY ($1::text[])
)
DELETE FROM harbor.edge WHERE parent = ANY ($1::text[])
