-- Move a ready job: one without a holder that waits for nobody. Its state is not named, or the line would be read as a
-- whole. $1 id $2 run_at $3 priority
WITH moved AS (
    UPDATE harbor.live SET run_at = coalesce($2, live.run_at), due_at = coalesce($2, live.due_at),
        priority = coalesce($3, live.priority)
    FROM harbor.job WHERE job.id = $1 AND live.seq = job.seq AND live.token IS NULL AND live.unmet = 0
    RETURNING live.seq, live.priority
)
UPDATE harbor.job SET priority = moved.priority FROM moved WHERE job.seq = moved.seq RETURNING 1
