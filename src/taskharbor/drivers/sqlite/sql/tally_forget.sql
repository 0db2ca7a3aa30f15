DELETE FROM tally WHERE minute < ?1
