-- Idempotency keys: who owns one, taking and freeing it. Every statement locks keys in the order of their text.

-- part: key_held
-- A condition on a row `known` of `keys`: its owner, a job or a workflow, has not ended (I2). Subqueries instead of
-- joins, which might read whole tables.
(
    (SELECT live.seq FROM harbor.live WHERE live.seq = (
        SELECT job.seq FROM harbor.job WHERE job.id = known.owner)) IS NOT NULL
    OR (SELECT job.seq FROM harbor.job WHERE job.workflow_id = known.owner
        AND (SELECT live.seq FROM harbor.live WHERE live.seq = job.seq) IS NOT NULL LIMIT 1) IS NOT NULL
)

-- name: key_living
-- Owners and digests of the keys that are taken. $1 keys $2 now
SELECT key, owner, digest FROM harbor.keys AS known
WHERE key = ANY ($1::text[]) AND (expires_at IS NULL OR expires_at > $2 OR
-- include: key_held
)

-- name: key_put
-- Take keys that are free, or that have expired and whose owners have ended; returns those taken. An owner that is
-- being replayed touches its key, so the row overwritten must be the one that was seen together with the owner's
-- end. $1 keys $2 owners $3 digests $4 expires_at $5 now
INSERT INTO harbor.keys (key, owner, digest, expires_at)
SELECT key, owner, digest, expires_at
FROM unnest($1::text[], $2::text[], $3::bytea[], $4::timestamptz[]) AS given (key, owner, digest, expires_at) ORDER BY key
ON CONFLICT (key) DO UPDATE SET owner = excluded.owner, digest = excluded.digest, expires_at = excluded.expires_at
WHERE keys.expires_at <= $5 AND keys.xmin = (
        SELECT known.xmin FROM harbor.keys AS known WHERE known.key = keys.key AND NOT
-- include: key_held
    )
RETURNING key

-- name: key_hold
-- Lock keys. One that does not exist is locked by a placeholder without an owner, which the taker overwrites.
-- $1 keys
INSERT INTO harbor.keys (key, owner, digest, expires_at)
SELECT key, '', '', '-infinity' FROM unnest($1::text[]) AS given (key) ORDER BY key
ON CONFLICT (key) DO UPDATE SET owner = excluded.owner WHERE false

-- name: key_leave
-- Remove the placeholders of key_hold that were not taken. $1 keys
DELETE FROM harbor.keys WHERE key = ANY ($1::text[]) AND owner = ''

-- name: key_keep
-- Whether a replayed job still owns its key. The row is rewritten, so that key_put does not overwrite one it saw
-- before. $1 key $2 owner
UPDATE harbor.keys SET owner = owner WHERE key = $1 AND owner = $2 RETURNING key

-- name: key_free
-- Jobs give up their keys. $1 ids $2 whether kept jobs do too
WITH theirs AS MATERIALIZED (
    SELECT seq, id, idempotency_key FROM harbor.job
    WHERE id = ANY ($1::text[]) AND ($2 OR kept IS NULL) AND (idempotency_key IS NOT NULL OR key_expires_at IS NOT NULL)
),
held AS MATERIALIZED (
    SELECT key FROM harbor.keys WHERE key = ANY (ARRAY (SELECT idempotency_key FROM theirs)) ORDER BY key FOR UPDATE
),
freed AS (
    DELETE FROM harbor.keys USING theirs
    WHERE keys.key = theirs.idempotency_key AND keys.owner = theirs.id AND keys.key = ANY (ARRAY (SELECT key FROM held))
)
UPDATE harbor.job SET idempotency_key = NULL, key_expires_at = NULL FROM theirs WHERE job.seq = theirs.seq

-- name: key_free_owner
-- $1 workflow
DELETE FROM harbor.keys WHERE owner = $1 RETURNING key

-- name: key_hold_workflow
-- Lock the keys of workflows: of two transactions that remove a record each, the second must see what the first
-- removed. $1 workflows
SELECT owner FROM harbor.keys WHERE owner = ANY ($1::text[]) ORDER BY key FOR UPDATE

-- name: key_free_workflow
-- The key of a workflow goes with its last record. $1 workflows
DELETE FROM harbor.keys
WHERE owner = ANY ($1::text[]) AND NOT EXISTS (SELECT FROM harbor.job WHERE job.workflow_id = keys.owner)

-- name: key_lock
-- Lock keys. $1 keys
SELECT key, owner, digest, expires_at FROM harbor.keys WHERE key = ANY ($1::text[]) ORDER BY key FOR UPDATE

-- name: key_owned
-- Lock the keys of workflows: of two transactions that remove a record each, the second must see what the first
-- removed. $1 workflows
SELECT key, owner, digest, expires_at FROM harbor.keys WHERE owner = ANY ($1::text[]) ORDER BY key FOR UPDATE

-- name: key_remove
-- $1 keys
DELETE FROM harbor.keys WHERE key = ANY ($1::text[])
