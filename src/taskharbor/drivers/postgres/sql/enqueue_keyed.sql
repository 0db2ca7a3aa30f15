-- Store jobs that have a key, each on its own: one whose id or key is taken is left out (I1). A key that has run out is
-- taken over once its owner has ended, as in key_put.sql. An id that somebody else stores at this moment is an error, for
-- its key must not be taken without it. $1-$16 the columns $17 now $18 digests $19 whom to tell, if anybody
WITH given AS (
    SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bytea[], $5::smallint[], $6::integer[], $7::integer[],
        $8::timestamptz[], $9::timestamptz[], $10::float8[], $11::text[], $12::timestamptz[], $13::text[], $14::text[],
        $15::text[], $16::boolean[], $18::bytea[]) WITH ORDINALITY
        AS given (id, type, queue, payload, priority, max_attempts, max_crashes, run_at, expires_at, timeout,
        idempotency_key, key_expires_at, headers, tags, workflow_id, kept, digest, position)
    WHERE NOT EXISTS (SELECT FROM harbor.job WHERE job.id = given.id)
),
taken AS (
    INSERT INTO harbor.keys (key, owner, digest, expires_at)
    SELECT idempotency_key, id, digest, key_expires_at FROM given ORDER BY idempotency_key
    ON CONFLICT (key) DO UPDATE SET owner = excluded.owner, digest = excluded.digest, expires_at = excluded.expires_at
    WHERE keys.expires_at <= $17 AND keys.xmin = (
        SELECT known.xmin FROM harbor.keys AS known WHERE known.key = keys.key AND NOT
\i key_held.sql
    )
    RETURNING key
),
new AS (
    INSERT INTO harbor.job (
        id, type, queue, payload, priority, max_attempts, max_crashes, run_at, expires_at, timeout,
        idempotency_key, key_expires_at, headers, tags, workflow_id, kept, created_at
    )
    SELECT id, type, queue, payload, priority, max_attempts, max_crashes, run_at, expires_at, timeout,
        idempotency_key, key_expires_at, headers, tags, workflow_id, kept, $17
    -- Not as a join, which would compare each with each where it may not use a hash table.
    FROM given WHERE (idempotency_key IN (SELECT key FROM taken)) IS TRUE
    ORDER BY position
    RETURNING seq, id, queue, priority, run_at, expires_at
),
line AS (
    INSERT INTO harbor.live (seq, priority, queue, state, due_at, run_at, expires_at)
    SELECT seq, priority, queue, 'ready', coalesce(run_at, $17), run_at, expires_at FROM new
)
SELECT id FROM new
UNION ALL
SELECT pg_notify($19, '')::text WHERE $19 IS NOT NULL
