-- Claim exactly these, as far as they can be (D2). $1 now $2 expiry $3 worker $4 what the tokens begin with $5 limit $6 ids
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
\i claim.sql
