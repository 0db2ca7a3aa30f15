-- Idempotency keys: who owns one, taking and freeing it.

-- name: key_living
-- A key is taken until it expires, and at least until its job, or the last one of its workflow, has ended (I2).
-- ?1 key ?2 now
SELECT owner, digest FROM keys WHERE key = ?1 AND (expires_at IS NULL OR expires_at > ?2
    OR EXISTS (SELECT 1 FROM job WHERE id = keys.owner AND completed_at IS NULL)
    OR EXISTS (SELECT 1 FROM job WHERE workflow_id = keys.owner AND keep_until IS NULL))

-- name: key_put
-- ?1 key ?2 owner ?3 digest ?4 expires_at
INSERT INTO keys (key, owner, digest, expires_at) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (key) DO UPDATE SET owner = ?2, digest = ?3, expires_at = ?4

-- name: key_free
-- ?1 key ?2 owner
DELETE FROM keys WHERE key = ?1 AND owner = ?2

-- name: key_drop
-- ?1 id
UPDATE job SET idempotency_key = NULL WHERE id = ?1

-- name: key_remove
-- ?1 key
DELETE FROM keys WHERE key = ?1
