-- Store jobs that belong together: an id that is taken is an error, and nothing is stored. $1-$16 the columns $17 unmet
WITH new AS (
    INSERT INTO harbor.job (
        id, type, queue, payload, priority, max_attempts, max_crashes, created_at, run_at, expires_at, timeout,
        idempotency_key, key_expires_at, headers, tags, workflow_id
    )
    SELECT id, type, queue, payload, priority, max_attempts, max_crashes, created_at, run_at, expires_at, timeout,
        idempotency_key, key_expires_at, headers, tags, workflow_id
    FROM unnest($1::text[], $2::text[], $3::text[], $4::bytea[], $5::smallint[], $6::integer[], $7::integer[],
        $8::timestamptz[], $9::timestamptz[], $10::timestamptz[], $11::float8[], $12::text[], $13::timestamptz[],
        $14::text[], $15::text[], $16::text[]) WITH ORDINALITY
        AS given (id, type, queue, payload, priority, max_attempts, max_crashes, created_at, run_at, expires_at, timeout,
        idempotency_key, key_expires_at, headers, tags, workflow_id, position)
    ORDER BY position
    RETURNING seq, id, queue, priority, created_at, run_at, expires_at
)
INSERT INTO harbor.live (seq, priority, queue, unmet, state, due_at, run_at, expires_at)
SELECT seq, priority, queue, unmet, CASE WHEN unmet > 0 THEN 'waiting' ELSE 'ready' END, coalesce(run_at, created_at), run_at,
    expires_at
FROM new JOIN unnest($1::text[], $17::integer[]) AS given (id, unmet) USING (id)
