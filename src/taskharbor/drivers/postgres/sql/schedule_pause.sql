-- $1 name $2 paused
UPDATE harbor.schedule SET paused = $2 WHERE name = $1 RETURNING 1
