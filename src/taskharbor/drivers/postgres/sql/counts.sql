-- Jobs by queue and shown state, and since when the first of those is due, or its lease runs out. $1 now
SELECT queue, CASE state
    WHEN 'ready' THEN CASE WHEN due_at > $1 THEN 'scheduled' ELSE 'ready' END
    WHEN 'inflight' THEN CASE WHEN lease_expires_at <= $1 THEN 'lapsed'
        WHEN started_at IS NULL THEN 'claimed' ELSE 'running' END
    ELSE state END AS shown, count(*), min(coalesce(lease_expires_at, due_at))
FROM harbor.live GROUP BY 1, 2
UNION ALL
SELECT queue, state, count(*), NULL FROM harbor.ended GROUP BY 1, 2
