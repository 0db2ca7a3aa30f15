DELETE FROM keys WHERE key IN (
    SELECT key FROM keys WHERE expires_at IS NOT NULL AND expires_at <= ?1 ORDER BY expires_at LIMIT ?2
)
