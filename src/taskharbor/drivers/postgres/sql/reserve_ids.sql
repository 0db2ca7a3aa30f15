-- Claim exactly these, as far as they can be (D2). $1 now $2 expiry $3 worker $4 what the tokens begin with $5 limit $6 ids
WITH chosen AS (
    SELECT live.seq, given.position AS place
    FROM unnest($6::text[]) WITH ORDINALITY AS given (id, position) JOIN harbor.job USING (id) JOIN harbor.live USING (seq)
    WHERE (live.state = 'ready' AND live.due_at <= $1 OR live.state = 'inflight' AND live.lease_expires_at <= $1)
        AND live.cancel_requested_at IS NULL AND (live.expires_at IS NULL OR live.expires_at > $1)
        AND live.queue NOT IN (SELECT queue FROM harbor.paused)
    ORDER BY given.position LIMIT $5
    FOR UPDATE OF live SKIP LOCKED
)
\i claim.sql
