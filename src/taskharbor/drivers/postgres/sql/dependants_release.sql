-- Dependencies less; the last one releases a waiting job. Those that were live, and whether each is in line now.
-- $1 ids $2 how many $3 now
UPDATE harbor.live SET unmet = unmet - given.met,
    state = CASE WHEN unmet = given.met AND state = 'waiting' THEN 'ready' ELSE state END,
    due_at = CASE WHEN unmet = given.met AND state = 'waiting' THEN greatest($3, coalesce(live.run_at, $3)) ELSE due_at END
FROM unnest($1::text[], $2::integer[]) AS given (id, met) JOIN harbor.job USING (id)
WHERE live.seq = job.seq
RETURNING job.id, live.state = 'ready'
