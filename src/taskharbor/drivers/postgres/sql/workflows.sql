-- How many jobs of workflows are in which state, and since when there are any. Of the index only one entry is read for
-- each workflow on the way. $1 limit $2 behind this id, if any $3 ids, if only those
WITH RECURSIVE walked (id, place) AS (
    SELECT $2::text COLLATE "C", 0 WHERE $3::text[] IS NULL
    UNION ALL
    SELECT CASE WHEN walked.id IS NULL
        THEN (SELECT workflow_id FROM harbor.job WHERE workflow_id IS NOT NULL ORDER BY workflow_id DESC LIMIT 1)
        ELSE (SELECT workflow_id FROM harbor.job WHERE workflow_id < walked.id ORDER BY workflow_id DESC LIMIT 1) END,
        place + 1
    FROM walked WHERE place < $1::bigint AND (place = 0 OR walked.id IS NOT NULL)
),
chosen AS (
    SELECT id FROM walked WHERE place > 0 AND id IS NOT NULL
    UNION
    SELECT id FROM unnest($3::text[]) AS given (id) WHERE $2 IS NULL OR id COLLATE "C" < $2
)
SELECT chosen.id, members.state, members.number, members.created_at
FROM chosen CROSS JOIN LATERAL (
    SELECT state, count(*) AS number, min(created_at) AS created_at
    -- Not as joins, for which whole tables might be read.
    FROM (
        SELECT job.created_at, coalesce(
            (SELECT live.state FROM harbor.live WHERE live.seq = job.seq),
            (SELECT ended.state FROM harbor.ended WHERE ended.seq = job.seq)) AS state
        FROM harbor.job WHERE job.workflow_id = chosen.id
    ) AS member GROUP BY state
) AS members
ORDER BY chosen.id DESC
