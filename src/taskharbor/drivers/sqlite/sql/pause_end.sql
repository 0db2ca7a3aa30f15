DELETE FROM paused WHERE queue = ?1
