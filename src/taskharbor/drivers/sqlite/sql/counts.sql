-- Other jobs by queue and shown state, each part from an index of its own, and since when the first lapsed one is due.
-- ?1 now
SELECT queue, state, count(*), NULL FROM job WHERE keep_until IS NOT NULL GROUP BY 1, 2
UNION ALL
SELECT queue, 'waiting', count(*), NULL FROM job WHERE state = 'waiting' GROUP BY 1
UNION ALL
SELECT queue, iif(lease_expires_at <= ?1, 'lapsed', iif(started_at IS NULL, 'claimed', 'running')), count(*),
    min(iif(lease_expires_at <= ?1, lease_expires_at, NULL))
FROM job WHERE lined > 0 AND lined = 2 GROUP BY 1, 2
UNION ALL
SELECT queue, iif(lease_expires_at <= ?1, 'lapsed', iif(started_at IS NULL, 'claimed', 'running')), count(*),
    min(iif(lease_expires_at <= ?1, lease_expires_at, NULL))
FROM job WHERE state = 'inflight' AND lined = 0 GROUP BY 1, 2
