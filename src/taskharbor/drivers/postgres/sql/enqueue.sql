-- Storing new jobs and their edges.

-- name: states
-- $1 ids
SELECT id, coalesce(
    (SELECT live.state FROM harbor.live WHERE live.seq = job.seq),
    (SELECT ended.state FROM harbor.ended WHERE ended.seq = job.seq))
FROM harbor.job WHERE id = ANY ($1::text[])

-- name: enqueue_one
-- Store one plain job, unless its id is taken. $1 id $2 type $3 queue $4 payload $5 priority $6 max_attempts
-- $7 max_crashes $8 now $9 channel to notify, or null
WITH new AS (
    INSERT INTO harbor.job (id, type, queue, payload, priority, max_attempts, max_crashes, created_at)
    VALUES ($1::text, $2::text, $3::text, $4::bytea, $5::smallint, $6::integer, $7::integer, $8::timestamptz)
    ON CONFLICT (id) DO NOTHING
    RETURNING seq
)
INSERT INTO harbor.live (seq, priority, queue, state, due_at) SELECT seq, $5, $3, 'ready', $8 FROM new
RETURNING CASE WHEN $9::text IS NOT NULL THEN pg_notify($9, '') END

-- part: new_jobs
-- Store the rows of `given` that the next lines choose. $17 now
    INSERT INTO harbor.job (
        id, type, queue, payload, priority, max_attempts, max_crashes, run_at, expires_at, timeout,
        idempotency_key, key_expires_at, headers, tags, workflow_id, kept, created_at
    )
    SELECT id, type, queue, payload, priority, max_attempts, max_crashes, run_at, expires_at, timeout,
        idempotency_key, key_expires_at, headers, tags, workflow_id, kept, $17

-- part: new_line
-- Put what `new` has stored in line, and return the ids. $17 now $18 channel to notify, or null
    RETURNING seq, id, queue, priority, run_at, expires_at
),
line AS (
    INSERT INTO harbor.live (seq, priority, queue, state, due_at, run_at, expires_at)
    SELECT seq, priority, queue, 'ready', coalesce(run_at, $17), run_at, expires_at FROM new
)
SELECT id FROM new
UNION ALL
SELECT pg_notify($18, '')::text WHERE $18 IS NOT NULL

-- name: enqueue
-- Store jobs, each on its own; one whose id is taken is left out. $1-$16 the columns $17 now $18 channel to notify,
-- or null
WITH new AS (
-- include: new_jobs
    FROM unnest($1::text[], $2::text[], $3::text[], $4::bytea[], $5::smallint[], $6::integer[], $7::integer[],
        $8::timestamptz[], $9::timestamptz[], $10::float8[], $11::text[], $12::timestamptz[], $13::text[], $14::text[],
        $15::text[], $16::boolean[]) WITH ORDINALITY
        AS given (id, type, queue, payload, priority, max_attempts, max_crashes, run_at, expires_at, timeout,
        idempotency_key, key_expires_at, headers, tags, workflow_id, kept, position)
    ORDER BY position
    ON CONFLICT (id) DO NOTHING
-- include: new_line

-- name: enqueue_keyed
-- Store jobs with keys, each on its own; one whose id or key is taken is left out (I1). An expired key is taken over
-- once its owner has ended, as in key_take. An id that another transaction is storing is an error: its key must not
-- be taken without the job. $1-$16 the columns $17 now $18 channel to notify, or null $19 digests
WITH given AS (
    SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bytea[], $5::smallint[], $6::integer[], $7::integer[],
        $8::timestamptz[], $9::timestamptz[], $10::float8[], $11::text[], $12::timestamptz[], $13::text[], $14::text[],
        $15::text[], $16::boolean[], $19::bytea[]) WITH ORDINALITY
        AS given (id, type, queue, payload, priority, max_attempts, max_crashes, run_at, expires_at, timeout,
        idempotency_key, key_expires_at, headers, tags, workflow_id, kept, digest, position)
    WHERE (SELECT job.seq FROM harbor.job WHERE job.id = given.id) IS NULL
),
taken AS (
    INSERT INTO harbor.keys (key, owner, digest, expires_at)
    SELECT idempotency_key, id, digest, key_expires_at FROM given ORDER BY idempotency_key
    ON CONFLICT (key) DO UPDATE SET owner = excluded.owner, digest = excluded.digest, expires_at = excluded.expires_at
    WHERE keys.expires_at <= $17 AND keys.xmin = (
        SELECT known.xmin FROM harbor.keys AS known WHERE known.key = keys.key AND NOT
-- include: key_held
    )
    RETURNING key
),
new AS (
-- include: new_jobs
    -- Not as a join, which would compare each with each where it may not use a hash table.
    FROM given WHERE (idempotency_key IN (SELECT key FROM taken)) IS TRUE
    ORDER BY position
-- include: new_line

-- name: enqueue_group
-- Store jobs that belong together; an id that is taken is an error, and nothing is stored. $1-$16 the columns
-- $17 now $18 unmet $19 whether any of them wait for others of the group
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

-- name: enqueue_number
-- A number below that of every job stored from now on.
SELECT nextval('harbor.job_seq_seq')

-- name: enqueue_line
-- Put copied jobs in line: the rows of this command (by xmin), except those that wait. $1 a number below theirs
-- $2 the id of one $3 whether any of them wait
INSERT INTO harbor.live (seq, priority, awaited, queue, state, due_at, run_at, expires_at)
SELECT seq, priority, $3, queue, 'ready', coalesce(run_at, created_at), run_at, expires_at FROM harbor.job
WHERE seq > $1 AND xmin = (SELECT xmin FROM harbor.job WHERE id = $2) AND (NOT $3 OR (
        SELECT true FROM harbor.edge WHERE edge.child = job.id AND NOT edge.satisfied LIMIT 1) IS NULL)

-- name: enqueue_waiting
-- The same for those that wait. $1 ids $2 unmet
INSERT INTO harbor.live (seq, priority, awaited, queue, unmet, state, due_at, run_at, expires_at)
SELECT job.seq, job.priority, true, job.queue, given.unmet, 'waiting', coalesce(job.run_at, job.created_at), job.run_at,
    job.expires_at
FROM unnest($1::text[], $2::integer[]) AS given (id, unmet)
CROSS JOIN LATERAL (SELECT * FROM harbor.job WHERE job.id = given.id LIMIT 1) AS job

-- name: enqueue_awaited
-- Mark jobs that have a new dependant. Rows are locked in the order of heartbeats and settles. $1 ids
UPDATE harbor.live SET awaited = true FROM (
    SELECT live.seq FROM harbor.live WHERE live.seq = ANY (
-- include: numbers
    ) ORDER BY live.seq FOR UPDATE OF live
) AS held
WHERE live.seq = ANY (ARRAY[held.seq])

-- name: enqueue_edges
-- $1 children $2 positions $3 parents $4 policies $5 satisfied
INSERT INTO harbor.edge (child, position, parent, policy, satisfied)
SELECT * FROM unnest($1::text[], $2::integer[], $3::text[], $4::text[], $5::boolean[])

-- name: notify
-- $1 channel
SELECT pg_notify($1, '')
