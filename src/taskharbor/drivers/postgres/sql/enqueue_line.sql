-- Put jobs that were just stored in line. $1 numbers
INSERT INTO harbor.live (seq, priority, queue, state, due_at, run_at, expires_at)
SELECT seq, priority, queue, 'ready', coalesce(run_at, created_at), run_at, expires_at FROM harbor.job
WHERE seq = ANY ($1::bigint[])
