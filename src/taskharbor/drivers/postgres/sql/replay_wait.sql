-- $1 ids $2 for how many more each waits
UPDATE harbor.live SET unmet = unmet + given.more, state = 'waiting'
FROM unnest($1::text[], $2::integer[]) AS given (id, more) JOIN harbor.job USING (id)
WHERE live.seq = job.seq
