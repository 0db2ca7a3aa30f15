-- Jobs by queue and shown state, and since when the first ready one is due. $1 now
SELECT queue, CASE state
    WHEN 'ready' THEN CASE WHEN due_at > $1 THEN 'scheduled' ELSE 'ready' END
    WHEN 'inflight' THEN CASE WHEN started_at IS NULL THEN 'claimed' ELSE 'running' END
    ELSE state END AS shown, count(*), min(due_at)
FROM harbor.live GROUP BY 1, 2
UNION ALL
SELECT queue, state, count(*), NULL FROM harbor.ended GROUP BY 1, 2
