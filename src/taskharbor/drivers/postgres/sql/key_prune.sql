-- $1 now $2 limit
DELETE FROM harbor.keys WHERE key IN (
    SELECT key FROM harbor.keys WHERE expires_at IS NOT NULL AND expires_at <= $1 ORDER BY expires_at LIMIT $2
    FOR UPDATE SKIP LOCKED
)
