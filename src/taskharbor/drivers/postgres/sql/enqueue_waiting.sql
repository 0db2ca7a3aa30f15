-- The same for those that wait for others. $1 ids $2 for how many
INSERT INTO harbor.live (seq, priority, awaited, queue, unmet, state, due_at, run_at, expires_at)
SELECT job.seq, job.priority, true, job.queue, given.unmet, 'waiting', coalesce(job.run_at, job.created_at), job.run_at,
    job.expires_at
FROM unnest($1::text[], $2::integer[]) AS given (id, unmet) JOIN harbor.job USING (id)
