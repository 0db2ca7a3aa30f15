-- Store jobs that have a key, each on its own: one whose id or key is taken is left out (I1). A key that has run out is
-- taken over. $1-$16 the columns $17 digests $18 now $19 whom to tell, if anybody
WITH given AS (
    SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bytea[], $5::smallint[], $6::integer[], $7::integer[],
        $8::timestamptz[], $9::timestamptz[], $10::timestamptz[], $11::float8[], $12::text[], $13::timestamptz[],
        $14::text[], $15::text[], $16::text[], $17::bytea[]) WITH ORDINALITY
        AS given (id, type, queue, payload, priority, max_attempts, max_crashes, created_at, run_at, expires_at, timeout,
        idempotency_key, key_expires_at, headers, tags, workflow_id, digest, position)
    WHERE NOT EXISTS (SELECT FROM harbor.job WHERE job.id = given.id)
),
taken AS (
    INSERT INTO harbor.keys (key, owner, digest, expires_at)
    SELECT idempotency_key, id, digest, key_expires_at FROM given ORDER BY idempotency_key
    ON CONFLICT (key) DO UPDATE SET owner = excluded.owner, digest = excluded.digest, expires_at = excluded.expires_at
    WHERE keys.expires_at <= $18
    RETURNING key, owner
),
new AS (
    INSERT INTO harbor.job (
        id, type, queue, payload, priority, max_attempts, max_crashes, created_at, run_at, expires_at, timeout,
        idempotency_key, key_expires_at, headers, tags, workflow_id
    )
    SELECT id, type, queue, payload, priority, max_attempts, max_crashes, created_at, run_at, expires_at, timeout,
        idempotency_key, key_expires_at, headers, tags, workflow_id
    FROM given JOIN taken ON taken.owner = given.id AND taken.key = given.idempotency_key
    ORDER BY position
    ON CONFLICT (id) DO NOTHING
    RETURNING seq, id, queue, priority, created_at, run_at, expires_at
),
line AS (
    INSERT INTO harbor.live (seq, priority, queue, state, due_at, run_at, expires_at)
    SELECT seq, priority, queue, 'ready', coalesce(run_at, created_at), run_at, expires_at FROM new
)
SELECT id FROM new
UNION ALL
SELECT pg_notify($19, '')::text WHERE $19 IS NOT NULL
