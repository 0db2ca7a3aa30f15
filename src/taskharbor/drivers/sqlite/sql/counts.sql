-- Other jobs by queue and shown state, each part from an index of its own.
SELECT queue, state, count(*) FROM job WHERE keep_until IS NOT NULL GROUP BY 1, 2
UNION ALL
SELECT queue, 'waiting', count(*) FROM job WHERE state = 'waiting' GROUP BY 1
UNION ALL
SELECT queue, iif(started_at IS NULL, 'claimed', 'running'), count(*)
FROM job WHERE lined > 0 AND lined = 2 GROUP BY 1, 2
UNION ALL
SELECT queue, iif(started_at IS NULL, 'claimed', 'running'), count(*)
FROM job WHERE state = 'inflight' AND lined = 0 GROUP BY 1, 2
