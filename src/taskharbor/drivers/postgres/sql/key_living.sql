-- What these keys stand for, while they live. $1 keys $2 now
SELECT key, owner, digest FROM harbor.keys WHERE key = ANY ($1::text[]) AND (expires_at IS NULL OR expires_at > $2)
