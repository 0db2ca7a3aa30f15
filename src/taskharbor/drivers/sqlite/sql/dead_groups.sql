-- Dead jobs that match, by what they died of, with the last one of each.
-- ?1 limit ?2 queue ?3 task ?4 error ?5 reason ?6 tag ?7 workflow ?8 since ?9 until ?10 fingerprint
WITH dead AS (
    SELECT seq, id, completed_at, coalesce(fingerprint, '') AS cause FROM job INDEXED BY job_aside
    WHERE state = 'dlq'
        AND (?2 IS NULL OR queue GLOB ?2)
        AND (?3 IS NULL OR type GLOB ?3)
        AND (?4 IS NULL OR instr(coalesce(last_error, ''), ?4) > 0)
        AND (?5 IS NULL OR dlq_reason GLOB ?5)
        AND (?6 IS NULL OR EXISTS (SELECT 1 FROM json_each(tags) WHERE value = ?6))
        AND (?7 IS NULL OR workflow_id = ?7)
        AND (?8 IS NULL OR created_at >= ?8)
        AND (?9 IS NULL OR created_at < ?9)
        AND (?10 IS NULL OR fingerprint = ?10)
),
ranked AS (
    SELECT seq, cause, count(*) OVER alike AS number, min(completed_at) OVER alike AS first_at,
        row_number() OVER alike AS place
    FROM dead WINDOW alike AS (PARTITION BY cause ORDER BY completed_at DESC, id DESC
        ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)
)
SELECT ranked.cause, job.type, job.last_error, ranked.number, ranked.first_at, job.completed_at, job.id
FROM ranked JOIN job USING (seq) WHERE ranked.place = 1 ORDER BY ranked.number DESC, ranked.cause LIMIT ?1
