-- Matching jobs, the newest first: of each table no more than are wanted. By LATERAL and LIMIT, the rest of a job is
-- looked up for one after the other, until there are enough.
-- $1 limit $2 before this seq $3 queue $4 task $5 error $6 reason $7 tag $8 since $9 until $10 fingerprint $11 now
-- $12 states
WITH found AS (
    (SELECT live.seq FROM harbor.live CROSS JOIN LATERAL (SELECT * FROM harbor.job WHERE job.seq = live.seq LIMIT 1) AS job
    WHERE live.seq < $2 AND $6::text IS NULL AND $10::text IS NULL
        AND ($12::text[] IS NULL OR CASE live.state
            WHEN 'ready' THEN CASE WHEN live.due_at > $11 THEN 'scheduled' ELSE 'ready' END
            WHEN 'inflight' THEN CASE WHEN live.lease_expires_at <= $11 THEN 'lapsed'
                WHEN live.started_at IS NULL THEN 'claimed' ELSE 'running' END
            ELSE live.state END = ANY ($12))
        AND ($3::text IS NULL OR job.queue LIKE $3)
        AND ($4::text IS NULL OR job.type LIKE $4)
        AND ($5::text IS NULL OR strpos(coalesce(live.last_error, ''), $5) > 0)
        AND ($7::text IS NULL OR EXISTS (SELECT FROM json_array_elements_text(job.tags::json) AS tag WHERE tag = $7))
        AND ($8::timestamptz IS NULL OR job.created_at >= $8)
        AND ($9::timestamptz IS NULL OR job.created_at < $9)
    ORDER BY live.seq DESC LIMIT $1)
    UNION ALL
    (SELECT ended.seq FROM harbor.ended CROSS JOIN LATERAL (SELECT * FROM harbor.job WHERE job.seq = ended.seq LIMIT 1) AS job
    WHERE ended.seq < $2
        AND ($12::text[] IS NULL OR ended.state = ANY ($12))
        AND ($3::text IS NULL OR job.queue LIKE $3)
        AND ($4::text IS NULL OR job.type LIKE $4)
        AND ($5::text IS NULL OR strpos(coalesce(ended.last_error, ''), $5) > 0)
        AND ($6::text IS NULL OR ended.dlq_reason LIKE $6)
        AND ($10::text IS NULL OR ended.fingerprint = $10)
        AND ($7::text IS NULL OR EXISTS (SELECT FROM json_array_elements_text(job.tags::json) AS tag WHERE tag = $7))
        AND ($8::timestamptz IS NULL OR job.created_at >= $8)
        AND ($9::timestamptz IS NULL OR job.created_at < $9)
    ORDER BY ended.seq DESC LIMIT $1)
)
-- As an array, which both halves of the view look up by their keys; a list that is joined would have them read whole.
SELECT * FROM harbor.record WHERE seq = ANY (ARRAY(SELECT seq FROM found ORDER BY seq DESC LIMIT $1)) ORDER BY seq DESC
