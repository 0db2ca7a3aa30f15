-- Store jobs that belong together: an id that is taken is an error, and nothing is stored. $1-$16 the columns $17 now
-- $18 unmet $19 whether they wait for each other
WITH given AS MATERIALIZED (
    SELECT nextval('harbor.job_seq_seq') AS seq, *
    FROM unnest($1::text[], $2::text[], $3::text[], $4::bytea[], $5::smallint[], $6::integer[], $7::integer[],
        $8::timestamptz[], $9::timestamptz[], $10::float8[], $11::text[], $12::timestamptz[], $13::text[], $14::text[],
        $15::text[], $16::boolean[], $18::integer[])
        AS given (id, type, queue, payload, priority, max_attempts, max_crashes, run_at, expires_at, timeout,
        idempotency_key, key_expires_at, headers, tags, workflow_id, kept, unmet)
),
new AS (
    INSERT INTO harbor.job (
        seq, id, type, queue, payload, priority, max_attempts, max_crashes, run_at, expires_at, timeout,
        idempotency_key, key_expires_at, headers, tags, workflow_id, kept, created_at
    )
    SELECT seq, id, type, queue, payload, priority, max_attempts, max_crashes, run_at, expires_at, timeout,
        idempotency_key, key_expires_at, headers, tags, workflow_id, kept, $17
    FROM given
)
INSERT INTO harbor.live (seq, priority, awaited, queue, unmet, state, due_at, run_at, expires_at)
SELECT seq, priority, $19, queue, unmet, CASE WHEN unmet > 0 THEN 'waiting' ELSE 'ready' END, coalesce(run_at, $17), run_at,
    expires_at
FROM given
