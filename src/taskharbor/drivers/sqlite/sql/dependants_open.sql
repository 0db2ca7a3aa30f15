-- Which of these jobs have dependants that still wait for them. ?1 ids
SELECT DISTINCT parent FROM edge WHERE satisfied = 0 AND parent IN (SELECT value FROM json_each(?1))
