-- The first due time of each queue and priority, and their first lease to run out. $1 queues
WITH RECURSIVE open AS (
    SELECT queue FROM unnest($1::text[]) AS given (queue) WHERE queue NOT IN (SELECT queue FROM harbor.paused)
),
rank (queue, priority) AS (
    SELECT open.queue, (
        SELECT priority FROM harbor.live WHERE state = 'ready' AND live.queue = open.queue ORDER BY priority DESC LIMIT 1)
    FROM open
    UNION ALL
    SELECT rank.queue, (
        SELECT priority FROM harbor.live WHERE state = 'ready' AND live.queue = rank.queue AND live.priority < rank.priority
        ORDER BY priority DESC LIMIT 1)
    FROM rank WHERE rank.priority IS NOT NULL
)
SELECT least(
    (SELECT min(due) FROM (
        SELECT (SELECT due_at FROM harbor.live
            WHERE state = 'ready' AND live.queue = rank.queue AND live.priority = rank.priority ORDER BY due_at LIMIT 1) AS due
        FROM rank WHERE priority IS NOT NULL) AS firsts),
    (SELECT lease_expires_at FROM harbor.live
        WHERE state = 'inflight' AND stop_requested_at IS NULL AND queue = ANY (ARRAY(SELECT queue FROM open))
        ORDER BY lease_expires_at LIMIT 1)
)
