SELECT 1 FROM keys WHERE key = ?1 AND owner = ?2 AND (expires_at IS NULL OR expires_at > ?3)
