SELECT 1 FROM keys WHERE key = ?1 AND owner = ?2
