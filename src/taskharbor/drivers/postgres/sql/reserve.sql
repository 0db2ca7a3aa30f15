-- Claiming due jobs and extending leases.

-- name: paused
SELECT queue FROM harbor.paused

-- part: ranks
-- The priorities of each open queue, from the highest down: an index probe for each.
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

-- name: reserve
-- Claim the best due jobs of several queues, ready ones and those whose leases lapsed (D2, D3, D5, D11). $1 now
-- $2 expiry $3 worker $4 token prefix $5 limit $6 queues $7 share of each queue
WITH RECURSIVE open AS (
    SELECT queue, share FROM unnest($6::text[], $7::integer[]) AS given (queue, share)
    WHERE queue NOT IN (SELECT queue FROM harbor.paused)
),
-- include: ranks
, ready AS (
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
-- include: claim

-- name: reserve_on
-- Claim the next jobs of several lines, each a queue and a priority, behind a bookmark: everything before it was
-- claimed. $1 now $2 expiry $3 worker $4 token prefix $5 queues $6 priorities $7 $8 bookmarks by due time and number
-- $9 how many of each
WITH chosen AS MATERIALIZED (
    SELECT found.seq, row_number() OVER () AS place
    FROM unnest($5::text[], $6::smallint[], $7::timestamptz[], $8::bigint[], $9::integer[])
        AS line (queue, priority, due_at, seq, share)
    CROSS JOIN LATERAL (
        SELECT live.seq FROM harbor.live
        WHERE state = 'ready' AND live.queue = line.queue AND live.priority = line.priority AND live.due_at <= $1
            AND (live.due_at, live.seq) > (line.due_at, line.seq) AND (live.expires_at IS NULL OR live.expires_at > $1)
        ORDER BY live.due_at, live.seq LIMIT line.share
        FOR UPDATE SKIP LOCKED
    ) AS found
    WHERE line.queue NOT IN (SELECT queue FROM harbor.paused)
)
-- include: claim

-- name: reserve_by_id
-- Claim exactly these, as far as they can be claimed (D2). $1 now $2 expiry $3 worker $4 token prefix $5 limit
-- $6 ids
WITH chosen AS MATERIALIZED (
    SELECT found.seq, given.place
    FROM unnest($6::text[]) WITH ORDINALITY AS given (id, place)
    CROSS JOIN LATERAL (
        SELECT live.seq FROM harbor.live
        WHERE live.seq = (SELECT job.seq FROM harbor.job WHERE job.id = given.id)
            AND (live.state = 'ready' AND live.due_at <= $1 OR live.state = 'inflight' AND live.lease_expires_at <= $1)
            AND live.stop_requested_at IS NULL AND (live.expires_at IS NULL OR live.expires_at > $1)
            AND live.queue NOT IN (SELECT queue FROM harbor.paused)
        FOR UPDATE SKIP LOCKED
    ) AS found
    ORDER BY given.place LIMIT $5
)
-- include: claim

-- part: claim
-- Take the jobs of `chosen`, or take over lapsed ones (D5); the last column is null for jobs without rare options.
UPDATE harbor.live SET state = 'inflight', version = live.version + 1, token = $4, lease_expires_at = $2, worker = $3,
    claimed_at = $1, started_at = NULL, progress = NULL, crashes = live.crashes + (live.state = 'inflight')::integer,
    run_at = CASE WHEN live.state = 'inflight' THEN NULL ELSE live.run_at END
FROM chosen JOIN harbor.job ON job.seq BETWEEN chosen.seq AND chosen.seq
WHERE live.seq BETWEEN chosen.seq AND chosen.seq
RETURNING chosen.place, live.seq, job.id, job.type, job.queue, job.payload, job.priority, job.max_attempts,
    job.max_crashes, job.created_at, live.due_at, live.run_at, job.workflow_id,
    CASE WHEN live.version > 1 OR num_nonnulls(live.expires_at, job.timeout, job.idempotency_key, job.key_expires_at,
        job.headers, job.tags, job.kept, job.original_id, live.last_error, live.failed_at, live.failures,
        live.settled_token) > 0
    THEN ROW (live.version, live.expires_at, job.timeout, job.idempotency_key, job.key_expires_at, job.headers, job.tags,
        job.kept, live.attempts, live.crashes, live.unknown_put_backs, live.last_error, live.failed_at, live.failures,
        job.original_id, job.replays, live.settled_kind, live.settled_at, live.settled_token) END

-- name: extend_lease
-- $1 numbers $2 token prefixes $3 started_at $4 progress $5 now $6 expiry
UPDATE harbor.live SET lease_expires_at = greatest(live.lease_expires_at, $6), started_at = coalesce(given.started_at, live.started_at),
    progress = coalesce(given.progress, live.progress)
FROM unnest($1::bigint[], $2::text[], $3::timestamptz[], $4::text[]) AS given (seq, token, started_at, progress)
WHERE live.seq = ANY (ARRAY[given.seq]) AND live.token = given.token AND live.lease_expires_at > $5
RETURNING live.seq, live.lease_expires_at, live.stop_requested_at IS NOT NULL AND live.stop_reason IS NULL,
    live.stop_reason IS NOT NULL

-- name: next_due
-- The first due time of each queue and priority, or their first lease to expire. $1 queues
WITH RECURSIVE open AS (
    SELECT queue FROM unnest($1::text[]) AS given (queue) WHERE queue NOT IN (SELECT queue FROM harbor.paused)
),
-- include: ranks
SELECT least(
    (SELECT min(due) FROM (
        SELECT (SELECT due_at FROM harbor.live
            WHERE state = 'ready' AND live.queue = rank.queue AND live.priority = rank.priority ORDER BY due_at LIMIT 1) AS due
        FROM rank WHERE priority IS NOT NULL) AS firsts),
    (SELECT lease_expires_at FROM harbor.live
        WHERE state = 'inflight' AND stop_requested_at IS NULL AND queue = ANY (ARRAY(SELECT queue FROM open))
        ORDER BY lease_expires_at LIMIT 1)
)
