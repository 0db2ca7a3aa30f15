UPDATE edge SET satisfied = 1 WHERE child = ?1 AND position = ?2
