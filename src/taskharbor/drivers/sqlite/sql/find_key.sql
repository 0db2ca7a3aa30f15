SELECT owner FROM keys WHERE key = ?1 AND (expires_at IS NULL OR expires_at > ?2)
