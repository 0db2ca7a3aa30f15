-- $1 names
DELETE FROM harbor.schedule WHERE name = ANY ($1::text[])
