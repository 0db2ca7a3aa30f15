-- $1 workflow
DELETE FROM harbor.keys WHERE owner = $1 RETURNING key
