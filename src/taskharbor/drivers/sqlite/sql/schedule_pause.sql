UPDATE schedule SET paused = ?2 WHERE name = ?1 RETURNING 1
