-- Put jobs that were just stored in line: those that came by the same command as one of them, without those that wait.
-- $1 a number before theirs $2 the id of one $3 whether any of them wait
INSERT INTO harbor.live (seq, priority, awaited, queue, state, due_at, run_at, expires_at)
SELECT seq, priority, $3, queue, 'ready', coalesce(run_at, created_at), run_at, expires_at FROM harbor.job
WHERE seq > $1 AND xmin = (SELECT xmin FROM harbor.job WHERE id = $2) AND (NOT $3 OR NOT EXISTS (
        SELECT FROM harbor.edge WHERE edge.child = job.id AND NOT edge.satisfied))
