-- As query.sql, by way of the members of one workflow.
-- $1 limit $2 before this seq $3 queue $4 task $5 error $6 reason $7 tag $8 since $9 until $10 fingerprint $11 now
-- $12 states $13 workflow
SELECT * FROM harbor.record
WHERE seq = ANY (ARRAY(SELECT seq FROM harbor.job WHERE workflow_id = $13 AND seq < $2))
    AND ($12::text[] IS NULL OR CASE state
        WHEN 'ready' THEN CASE WHEN due_at > $11 THEN 'scheduled' ELSE 'ready' END
        WHEN 'inflight' THEN CASE WHEN lease_expires_at <= $11 THEN 'lapsed'
        WHEN started_at IS NULL THEN 'claimed' ELSE 'running' END
        ELSE state END = ANY ($12))
    AND ($3::text IS NULL OR queue LIKE $3)
    AND ($4::text IS NULL OR type LIKE $4)
    AND ($5::text IS NULL OR strpos(coalesce(last_error, ''), $5) > 0)
    AND ($6::text IS NULL OR dlq_reason LIKE $6)
    AND ($10::text IS NULL OR fingerprint = $10)
    AND ($7::text IS NULL OR EXISTS (SELECT FROM json_array_elements_text(tags::json) AS tag WHERE tag = $7))
    AND ($8::timestamptz IS NULL OR created_at >= $8)
    AND ($9::timestamptz IS NULL OR created_at < $9)
ORDER BY seq DESC LIMIT $1
