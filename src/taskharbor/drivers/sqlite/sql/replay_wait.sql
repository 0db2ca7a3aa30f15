-- ?1 id ?2 for how many more
UPDATE job SET unmet = unmet + ?2, state = 'waiting', lined = 0 WHERE id = ?1
