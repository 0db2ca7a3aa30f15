-- Store jobs, each on its own: one whose id is taken is left out. $1-$16 the columns $17 now $18 whom to tell, if
-- anybody
WITH new AS (
    INSERT INTO harbor.job (
        id, type, queue, payload, priority, max_attempts, max_crashes, run_at, expires_at, timeout,
        idempotency_key, key_expires_at, headers, tags, workflow_id, kept, created_at
    )
    SELECT id, type, queue, payload, priority, max_attempts, max_crashes, run_at, expires_at, timeout,
        idempotency_key, key_expires_at, headers, tags, workflow_id, kept, $17
    FROM unnest($1::text[], $2::text[], $3::text[], $4::bytea[], $5::smallint[], $6::integer[], $7::integer[],
        $8::timestamptz[], $9::timestamptz[], $10::float8[], $11::text[], $12::timestamptz[], $13::text[], $14::text[],
        $15::text[], $16::boolean[]) WITH ORDINALITY
        AS given (id, type, queue, payload, priority, max_attempts, max_crashes, run_at, expires_at, timeout,
        idempotency_key, key_expires_at, headers, tags, workflow_id, kept, position)
    ORDER BY position
    ON CONFLICT (id) DO NOTHING
    RETURNING seq, id, queue, priority, run_at, expires_at
),
line AS (
    INSERT INTO harbor.live (seq, priority, queue, state, due_at, run_at, expires_at)
    SELECT seq, priority, queue, 'ready', coalesce(run_at, $17), run_at, expires_at FROM new
)
SELECT id FROM new
UNION ALL
SELECT pg_notify($18, '')::text WHERE $18 IS NOT NULL
