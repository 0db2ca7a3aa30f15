-- The first due time of each queue and priority, and the first lease to run out. $1 queues
WITH RECURSIVE rank (queue, priority) AS (
    SELECT given.queue, (
        SELECT priority FROM harbor.live WHERE state = 'ready' AND live.queue = given.queue ORDER BY priority DESC LIMIT 1)
    FROM unnest($1::text[]) AS given (queue) WHERE given.queue NOT IN (SELECT queue FROM harbor.paused)
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
    (SELECT lease_expires_at FROM harbor.live WHERE state = 'inflight' AND cancel_requested_at IS NULL
        ORDER BY lease_expires_at LIMIT 1)
)
