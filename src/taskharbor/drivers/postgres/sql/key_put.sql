-- Take keys that are free, or have run out and whose owners have ended; those that were taken. An owner that is put back
-- at this moment touches its key, so what is overwritten must be the row that was seen together with the owner's end.
-- $1 keys $2 owners $3 digests $4 expires_at $5 now
INSERT INTO harbor.keys (key, owner, digest, expires_at)
SELECT key, owner, digest, expires_at
FROM unnest($1::text[], $2::text[], $3::bytea[], $4::timestamptz[]) AS given (key, owner, digest, expires_at) ORDER BY key
ON CONFLICT (key) DO UPDATE SET owner = excluded.owner, digest = excluded.digest, expires_at = excluded.expires_at
WHERE keys.expires_at <= $5 AND keys.xmin = (
        SELECT known.xmin FROM harbor.keys AS known WHERE known.key = keys.key AND NOT
\i key_held.sql
    )
RETURNING key
