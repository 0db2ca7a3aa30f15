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

-- name: key_take
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

-- name: key_put
-- Write keys that are locked. $1 keys $2 owners $3 digests $4 expires_at
INSERT INTO harbor.keys (key, owner, digest, expires_at)
SELECT * FROM unnest($1::text[], $2::text[], $3::bytea[], $4::timestamptz[])
ON CONFLICT (key) DO UPDATE SET owner = excluded.owner, digest = excluded.digest, expires_at = excluded.expires_at

-- name: key_hold
-- Lock keys that a replay may take. One that does not exist is locked by a placeholder without an owner. The others
-- are rewritten, so that key_take does not overwrite one that it saw before the replay. $1 keys
INSERT INTO harbor.keys (key, owner, digest, expires_at)
SELECT key, '', '', '-infinity' FROM unnest($1::text[]) AS given (key) ORDER BY key
ON CONFLICT (key) DO UPDATE SET owner = keys.owner

-- name: key_leave
-- Remove the placeholders of key_hold that were not taken. $1 keys
DELETE FROM harbor.keys WHERE key = ANY ($1::text[]) AND owner = ''

-- part: freed
-- Delete the keys that jobs of `gone` own, once they are locked in order.
held AS MATERIALIZED (
    SELECT key, owner FROM harbor.keys WHERE key = ANY (ARRAY (SELECT idempotency_key FROM gone)) ORDER BY key FOR UPDATE
),
freed AS (
    DELETE FROM harbor.keys WHERE key = ANY (ARRAY (
        SELECT held.key FROM held
        WHERE ((held.key, held.owner) IN (SELECT idempotency_key, id FROM gone WHERE idempotency_key IS NOT NULL)) IS TRUE))
)

-- name: key_free
-- Cancelled jobs give up their keys, except kept ones (T3, M1). $1 ids
WITH gone AS MATERIALIZED (
    SELECT seq, id, idempotency_key FROM harbor.job
    WHERE id = ANY ($1::text[]) AND kept IS NULL AND (idempotency_key IS NOT NULL OR key_expires_at IS NOT NULL)
),
-- include: freed
UPDATE harbor.job SET idempotency_key = NULL, key_expires_at = NULL WHERE job.seq = ANY (ARRAY (SELECT seq FROM gone))

-- name: key_remove
-- $1 keys
DELETE FROM harbor.keys WHERE key = ANY ($1::text[])
