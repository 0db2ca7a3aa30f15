-- Matching jobs, the newest first: of each table no more than are wanted.
-- $1 now $2 limit $3 before this seq $4 states $5 queue $6 task $7 error $8 reason $9 tag $10 workflow $11 since $12 until
WITH found AS (
    (SELECT live.seq FROM harbor.live JOIN harbor.job USING (seq)
    WHERE live.seq < $3 AND $8::text IS NULL
        AND ($4::text[] IS NULL OR CASE live.state
            WHEN 'ready' THEN CASE WHEN live.due_at > $1 THEN 'scheduled' ELSE 'ready' END
            WHEN 'inflight' THEN CASE WHEN live.started_at IS NULL THEN 'claimed' ELSE 'running' END
            ELSE live.state END = ANY ($4))
        AND ($5::text IS NULL OR job.queue LIKE $5)
        AND ($6::text IS NULL OR job.type LIKE $6)
        AND ($7::text IS NULL OR strpos(coalesce(live.last_error, ''), $7) > 0)
        AND ($9::text IS NULL OR EXISTS (SELECT FROM json_array_elements_text(job.tags::json) AS tag WHERE tag = $9))
        AND ($10::text IS NULL OR job.workflow_id = $10)
        AND ($11::timestamptz IS NULL OR job.created_at >= $11)
        AND ($12::timestamptz IS NULL OR job.created_at < $12)
    ORDER BY live.seq DESC LIMIT $2)
    UNION ALL
    (SELECT ended.seq FROM harbor.ended JOIN harbor.job USING (seq)
    WHERE ended.seq < $3
        AND ($4::text[] IS NULL OR ended.state = ANY ($4))
        AND ($5::text IS NULL OR job.queue LIKE $5)
        AND ($6::text IS NULL OR job.type LIKE $6)
        AND ($7::text IS NULL OR strpos(coalesce(ended.last_error, ''), $7) > 0)
        AND ($8::text IS NULL OR ended.dlq_reason LIKE $8)
        AND ($9::text IS NULL OR EXISTS (SELECT FROM json_array_elements_text(job.tags::json) AS tag WHERE tag = $9))
        AND ($10::text IS NULL OR job.workflow_id = $10)
        AND ($11::timestamptz IS NULL OR job.created_at >= $11)
        AND ($12::timestamptz IS NULL OR job.created_at < $12)
    ORDER BY ended.seq DESC LIMIT $2)
)
SELECT record.* FROM harbor.record WHERE seq IN (SELECT seq FROM found ORDER BY seq DESC LIMIT $2) ORDER BY seq DESC
