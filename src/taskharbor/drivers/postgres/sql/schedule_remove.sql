-- $1 name
DELETE FROM harbor.schedule WHERE name = $1 RETURNING 1
