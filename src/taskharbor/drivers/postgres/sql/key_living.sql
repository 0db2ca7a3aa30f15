-- What these keys stand for, while they live. $1 keys $2 now
SELECT key, owner, digest FROM harbor.keys AS known
WHERE key = ANY ($1::text[]) AND (expires_at IS NULL OR expires_at > $2 OR
\i key_held.sql
)
