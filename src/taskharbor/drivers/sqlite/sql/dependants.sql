SELECT child, position, policy FROM edge WHERE parent = ?1 AND satisfied = 0
