-- How many jobs of workflows are in which state, and since when there are any. Of the index only one entry is read for
-- each workflow on the way. ?1 limit ?2 behind this id, if any ?3 ids, if only those
WITH RECURSIVE walked (id, place) AS (
    SELECT ?2, 0 WHERE ?3 IS NULL
    UNION ALL
    SELECT CASE WHEN walked.id IS NULL THEN (SELECT max(workflow_id) FROM job WHERE workflow_id IS NOT NULL)
        ELSE (SELECT max(workflow_id) FROM job WHERE workflow_id < walked.id) END, place + 1
    FROM walked WHERE place < ?1 AND (place = 0 OR walked.id IS NOT NULL)
),
chosen (id) AS (
    SELECT id FROM walked WHERE place > 0 AND id IS NOT NULL
    UNION
    SELECT value FROM json_each(?3) WHERE ?2 IS NULL OR value < ?2
)
SELECT chosen.id, job.state, count(*), min(job.created_at)
FROM chosen CROSS JOIN job INDEXED BY job_workflow ON job.workflow_id = chosen.id
GROUP BY 1, 2 ORDER BY 1 DESC
