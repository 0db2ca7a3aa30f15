-- As query.sql, by way of the dead jobs alone.
-- $1 limit $2 before this seq $3 queue $4 task $5 error $6 reason $7 tag $8 since $9 until $10 fingerprint
SELECT * FROM harbor.record
WHERE seq = ANY (ARRAY(
    SELECT ended.seq FROM harbor.ended CROSS JOIN LATERAL (SELECT * FROM harbor.job WHERE job.seq = ended.seq LIMIT 1) AS job
    WHERE ended.state = 'dlq' AND ended.seq < $2
        AND ($3::text IS NULL OR job.queue LIKE $3)
        AND ($4::text IS NULL OR job.type LIKE $4)
        AND ($5::text IS NULL OR strpos(coalesce(ended.last_error, ''), $5) > 0)
        AND ($6::text IS NULL OR ended.dlq_reason LIKE $6)
        AND ($10::text IS NULL OR ended.fingerprint = $10)
        AND ($7::text IS NULL OR EXISTS (SELECT FROM json_array_elements_text(job.tags::json) AS tag WHERE tag = $7))
        AND ($8::timestamptz IS NULL OR job.created_at >= $8)
        AND ($9::timestamptz IS NULL OR job.created_at < $9)
    ORDER BY ended.seq DESC LIMIT $1))
ORDER BY seq DESC
