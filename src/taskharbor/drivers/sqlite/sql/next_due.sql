-- The first due time of each queue and priority, and their first lease to run out. ?1 queues
WITH RECURSIVE open (queue) AS (
    SELECT value FROM json_each(?1) WHERE value NOT IN (SELECT queue FROM paused)
),
rank (queue, priority) AS (
    SELECT queue, (SELECT max(priority) FROM job WHERE lined > 0 AND queue = open.queue) FROM open
    UNION ALL
    SELECT queue, (SELECT max(priority) FROM job WHERE lined > 0 AND queue = rank.queue AND priority < rank.priority)
    FROM rank WHERE priority IS NOT NULL
)
SELECT min(due) FROM (
    SELECT (SELECT min(place) FROM job
        WHERE lined > 0 AND queue = rank.queue AND priority = rank.priority) AS due
    FROM rank WHERE priority IS NOT NULL
    UNION ALL
    SELECT min(lease_expires_at) FROM job
    WHERE state = 'inflight' AND lined = 0 AND stop_requested_at IS NULL AND queue IN (SELECT queue FROM open)
)
