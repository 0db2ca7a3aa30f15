SELECT 1 FROM edge WHERE satisfied = 0 LIMIT 1
