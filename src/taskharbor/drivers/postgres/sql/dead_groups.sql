-- Dead jobs that match, by what they died of, with the last one of each.
-- $1 limit $2 queue $3 task $4 error $5 reason $6 tag $7 since $8 until $9 fingerprint $10 workflow
WITH dead AS (
    SELECT ended.seq, job.id, job.type, ended.completed_at, coalesce(ended.fingerprint, '') AS cause
    FROM harbor.ended CROSS JOIN LATERAL (SELECT * FROM harbor.job WHERE job.seq = ended.seq LIMIT 1) AS job
    WHERE ended.state = 'dlq'
        AND ($2::text IS NULL OR job.queue LIKE $2)
        AND ($3::text IS NULL OR job.type LIKE $3)
        AND ($4::text IS NULL OR strpos(coalesce(ended.last_error, ''), $4) > 0)
        AND ($5::text IS NULL OR ended.dlq_reason LIKE $5)
        AND ($6::text IS NULL OR EXISTS (SELECT FROM json_array_elements_text(job.tags::json) AS tag WHERE tag = $6))
        AND ($7::timestamptz IS NULL OR job.created_at >= $7)
        AND ($8::timestamptz IS NULL OR job.created_at < $8)
        AND ($9::text IS NULL OR ended.fingerprint = $9)
        AND ($10::text IS NULL OR job.workflow_id = $10)
),
ranked AS (
    SELECT *, count(*) OVER alike AS number, min(completed_at) OVER alike AS first_at, row_number() OVER alike AS place
    FROM dead WINDOW alike AS (PARTITION BY cause ORDER BY completed_at DESC, id DESC
        ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)
)
SELECT cause, type, (SELECT last_error FROM harbor.ended WHERE ended.seq = ranked.seq), number, first_at, completed_at, id
FROM ranked WHERE place = 1 ORDER BY number DESC, cause LIMIT $1
