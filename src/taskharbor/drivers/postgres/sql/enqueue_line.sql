-- Put jobs that were just stored in line: those that came by the same command as one of them.
-- $1 a number before theirs $2 the id of one
INSERT INTO harbor.live (seq, priority, queue, state, due_at, run_at, expires_at)
SELECT seq, priority, queue, 'ready', coalesce(run_at, created_at), run_at, expires_at FROM harbor.job
WHERE seq > $1 AND xmin = (SELECT xmin FROM harbor.job WHERE id = $2)
