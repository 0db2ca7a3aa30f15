INSERT INTO edge (child, position, parent, policy, satisfied) VALUES (?1, ?2, ?3, ?4, ?5)
