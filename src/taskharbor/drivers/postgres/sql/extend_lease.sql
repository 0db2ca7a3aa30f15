-- $1 numbers $2 what the tokens begin with $3 started_at $4 progress $5 now $6 expiry
UPDATE harbor.live SET lease_expires_at = greatest(live.lease_expires_at, $6), started_at = coalesce(given.started_at, live.started_at),
    progress = coalesce(given.progress, live.progress)
FROM unnest($1::bigint[], $2::text[], $3::timestamptz[], $4::text[]) AS given (seq, token, started_at, progress)
WHERE live.seq = given.seq AND live.token = given.token AND live.lease_expires_at > $5
RETURNING live.seq, live.lease_expires_at, live.stop_requested_at IS NOT NULL AND live.stop_reason IS NULL,
    live.stop_reason IS NOT NULL
