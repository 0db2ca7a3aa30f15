-- What was kept long enough and is needed by nothing unfinished (X8). $1 now $2 limit
SELECT job.id FROM harbor.ended JOIN harbor.job USING (seq)
WHERE ended.keep_until <= $1
    AND NOT EXISTS (
        SELECT FROM harbor.edge JOIN harbor.job AS child ON child.id = edge.child LEFT JOIN harbor.live ON live.seq = child.seq
        WHERE edge.parent = job.id AND (NOT edge.satisfied OR live.seq IS NOT NULL))
    AND (job.workflow_id IS NULL OR NOT EXISTS (
        SELECT FROM harbor.job AS member JOIN harbor.live ON live.seq = member.seq WHERE member.workflow_id = job.workflow_id))
ORDER BY ended.keep_until, ended.seq LIMIT $2
FOR UPDATE OF ended SKIP LOCKED
