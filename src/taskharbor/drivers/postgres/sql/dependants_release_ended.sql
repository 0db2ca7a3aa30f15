-- The same for jobs that have ended themselves; those that had. $1 ids $2 how many
UPDATE harbor.ended SET unmet = unmet - given.met
FROM unnest($1::text[], $2::integer[]) AS given (id, met) JOIN harbor.job USING (id)
WHERE ended.seq = job.seq
RETURNING job.id
