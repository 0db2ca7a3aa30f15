-- Claim the best due jobs of several queues, ready ones and those whose leases lapsed (D2, D3, D5, D11).
-- $1 queues $2 how many each may take first $3 limit $4 now $5 expiry $6 worker $7 what their tokens begin with
WITH RECURSIVE open AS (
    SELECT queue, share FROM unnest($1::text[], $2::integer[]) AS given (queue, share)
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
        WHERE state = 'ready' AND live.queue = rank.queue AND live.priority = rank.priority AND live.due_at <= $4
            AND (live.expires_at IS NULL OR live.expires_at > $4)
        ORDER BY live.due_at, live.seq LIMIT $3
        FOR UPDATE SKIP LOCKED
    ) AS found
    WHERE rank.priority IS NOT NULL
),
-- A first crash goes to the front, later ones queue up by the end of their lease.
lapsed AS (
    SELECT open.queue, found.priority, found.due, found.seq
    FROM open CROSS JOIN LATERAL (
        SELECT live.seq, live.priority, CASE WHEN crashes = 0 THEN '-infinity' ELSE lease_expires_at END AS due FROM harbor.live
        WHERE state = 'inflight' AND live.queue = open.queue AND lease_expires_at <= $4 AND cancel_requested_at IS NULL
            AND (live.expires_at IS NULL OR live.expires_at > $4)
        ORDER BY live.priority DESC, due, live.seq LIMIT $3
        FOR UPDATE SKIP LOCKED
    ) AS found
),
ordered AS (
    SELECT seq, due, row_number() OVER (PARTITION BY queue ORDER BY priority DESC, due, seq) AS place, queue
    FROM (SELECT * FROM ready UNION ALL SELECT * FROM lapsed) AS both_kinds
),
chosen AS (
    SELECT ordered.seq, ordered.place FROM ordered JOIN open USING (queue)
    ORDER BY ordered.place > open.share, ordered.place LIMIT $3
)
UPDATE harbor.live SET state = 'inflight', version = live.version + 1, token = $7, lease_expires_at = $5, worker = $6,
    claimed_at = $4, started_at = NULL, progress = NULL, crashes = live.crashes + (live.state = 'inflight')::integer,
    run_at = CASE WHEN live.state = 'inflight' THEN NULL ELSE live.run_at END
FROM chosen JOIN harbor.job USING (seq)
WHERE live.seq = chosen.seq
RETURNING chosen.place, live.seq, job.id, job.type, job.queue, job.payload, job.priority, job.max_attempts,
    job.max_crashes, job.created_at, live.due_at, live.run_at,
    CASE WHEN live.version > 1 OR num_nonnulls(live.expires_at, job.timeout, job.idempotency_key, job.key_expires_at,
        job.headers, job.tags, job.workflow_id, job.original_id, live.last_error, live.failed_at, live.failures,
        live.settled_token, live.cancel_requested_at) > 0
    THEN ROW (live.version, live.expires_at, job.timeout, job.idempotency_key, job.key_expires_at, job.headers, job.tags,
        job.workflow_id, live.attempts, live.crashes, live.unknown_put_backs, live.last_error, live.failed_at,
        live.failures, live.cancel_requested_at, job.original_id, job.replays, live.settled_token) END
