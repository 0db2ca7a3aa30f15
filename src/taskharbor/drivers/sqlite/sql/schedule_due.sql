SELECT 1 FROM schedule WHERE name = ?1 AND slot IS ?2 AND paused = 0
