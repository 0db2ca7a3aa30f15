-- Claim what comes next in several lines, each a queue and a priority, behind a place that everything up to was claimed.
-- $1 now $2 expiry $3 worker $4 what the tokens begin with $5 queues $6 priorities $7 $8 the places, by due time and
-- number $9 how many of each
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
\i claim.sql
