DELETE FROM schedule WHERE name = ?1
