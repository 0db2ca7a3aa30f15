-- Claim the best due jobs of several queues, ready ones and those whose leases lapsed (D2, D3, D5, D11).
-- $1 now $2 expiry $3 worker $4 what the tokens begin with $5 limit $6 queues $7 how many each may take first
WITH RECURSIVE open AS (
    SELECT queue, share FROM unnest($6::text[], $7::integer[]) AS given (queue, share)
    WHERE queue NOT IN (SELECT queue FROM harbor.paused)
),
-- The priorities of each queue, from the highest down: an index probe for each.
rank (queue, priority) AS (
    SELECT open.queue, (
        SELECT priority FROM harbor.live WHERE state = 'ready' AND live.queue = open.queue ORDER BY priority DESC LIMIT 1)
    FROM open
    UNION ALL
    SELECT rank.queue, (
        SELECT priority FROM harbor.live WHERE state = 'ready' AND live.queue = rank.queue AND live.priority < rank.priority
        ORDER BY priority DESC LIMIT 1)
    FROM rank WHERE rank.priority IS NOT NULL
),
ready AS (
    SELECT rank.queue, rank.priority, found.due, found.seq
    FROM rank CROSS JOIN LATERAL (
        SELECT live.seq, live.due_at AS due FROM harbor.live
        WHERE state = 'ready' AND live.queue = rank.queue AND live.priority = rank.priority AND live.due_at <= $1
            AND (live.expires_at IS NULL OR live.expires_at > $1)
        ORDER BY live.due_at, live.seq LIMIT $5
        FOR UPDATE SKIP LOCKED
    ) AS found
    WHERE rank.priority IS NOT NULL
),
-- A first crash goes to the front, later ones queue up by the end of their lease.
lapsed AS (
    SELECT open.queue, found.priority, found.due, found.seq
    FROM open CROSS JOIN LATERAL (
        SELECT live.seq, live.priority, CASE WHEN crashes = 0 THEN '-infinity' ELSE lease_expires_at END AS due FROM harbor.live
        WHERE state = 'inflight' AND live.queue = open.queue AND lease_expires_at <= $1 AND stop_requested_at IS NULL
            AND (live.expires_at IS NULL OR live.expires_at > $1)
        ORDER BY live.priority DESC, due, live.seq LIMIT $5
        FOR UPDATE SKIP LOCKED
    ) AS found
),
ordered AS (
    SELECT seq, row_number() OVER (PARTITION BY queue ORDER BY priority DESC, due, seq) AS place, queue
    FROM (SELECT * FROM ready UNION ALL SELECT * FROM lapsed) AS both_kinds
),
chosen AS (
    SELECT ordered.seq, ordered.place FROM ordered JOIN open USING (queue)
    ORDER BY ordered.place > open.share, ordered.place LIMIT $5
)
\i claim.sql
