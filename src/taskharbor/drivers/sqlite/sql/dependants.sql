-- Dependants that still wait for these jobs. ?1 ids
SELECT parent, child, position, policy FROM edge WHERE satisfied = 0 AND parent IN (SELECT value FROM json_each(?1))
