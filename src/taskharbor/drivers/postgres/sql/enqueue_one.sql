-- Store a plain job on its own, unless its id is taken. $1 id $2 type $3 queue $4 payload $5 priority $6 max_attempts
-- $7 max_crashes $8 now $9 whom to tell, if anybody
WITH new AS (
    INSERT INTO harbor.job (id, type, queue, payload, priority, max_attempts, max_crashes, created_at)
    VALUES ($1::text, $2::text, $3::text, $4::bytea, $5::smallint, $6::integer, $7::integer, $8::timestamptz)
    ON CONFLICT (id) DO NOTHING
    RETURNING seq
)
INSERT INTO harbor.live (seq, priority, queue, state, due_at) SELECT seq, $5, $3, 'ready', $8 FROM new
RETURNING CASE WHEN $9::text IS NOT NULL THEN pg_notify($9, '') END
