-- The next lower priority in the line of a queue. ?1 queue ?2 priority before
SELECT max(priority) FROM job WHERE lined > 0 AND queue = ?1 AND priority < ?2
