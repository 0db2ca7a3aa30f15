-- Forget what was kept long enough and is needed by nothing unfinished (X8). ?1 now ?2 limit
DELETE FROM job WHERE seq IN (
    SELECT seq FROM job AS old
    WHERE keep_until IS NOT NULL AND keep_until <= ?1
        AND NOT EXISTS (
            SELECT 1 FROM edge JOIN job AS child ON child.id = edge.child
            WHERE edge.parent = old.id AND (edge.satisfied = 0 OR child.completed_at IS NULL))
        AND (workflow_id IS NULL OR NOT EXISTS (
            SELECT 1 FROM job AS member WHERE member.workflow_id = old.workflow_id AND member.completed_at IS NULL))
    ORDER BY keep_until, seq LIMIT ?2
)
RETURNING id, idempotency_key, workflow_id
