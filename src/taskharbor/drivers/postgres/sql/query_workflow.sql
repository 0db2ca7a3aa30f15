-- As query.sql, by way of the members of one workflow.
-- $1 now $2 limit $3 before this seq $4 states $5 queue $6 task $7 error $8 reason $9 tag $10 workflow $11 since $12 until
SELECT * FROM harbor.record
WHERE seq IN (SELECT seq FROM harbor.job WHERE workflow_id = $10 AND seq < $3)
    AND ($4::text[] IS NULL OR CASE state
        WHEN 'ready' THEN CASE WHEN due_at > $1 THEN 'scheduled' ELSE 'ready' END
        WHEN 'inflight' THEN CASE WHEN started_at IS NULL THEN 'claimed' ELSE 'running' END
        ELSE state END = ANY ($4))
    AND ($5::text IS NULL OR queue LIKE $5)
    AND ($6::text IS NULL OR type LIKE $6)
    AND ($7::text IS NULL OR strpos(coalesce(last_error, ''), $7) > 0)
    AND ($8::text IS NULL OR dlq_reason LIKE $8)
    AND ($9::text IS NULL OR EXISTS (SELECT FROM json_array_elements_text(tags::json) AS tag WHERE tag = $9))
    AND ($11::timestamptz IS NULL OR created_at >= $11)
    AND ($12::timestamptz IS NULL OR created_at < $12)
ORDER BY seq DESC LIMIT $2
