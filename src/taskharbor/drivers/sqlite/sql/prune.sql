-- Forget what was kept long enough and is needed by no dependant that is not done: one that is dead may be replayed, and
-- takes the results again (K3, X8). ?1 now ?2 limit
DELETE FROM job WHERE seq IN (
    SELECT seq FROM job AS old
    WHERE keep_until IS NOT NULL AND keep_until <= ?1
        AND NOT EXISTS (
            SELECT 1 FROM edge JOIN job AS child ON child.id = edge.child
            WHERE edge.parent = old.id AND (edge.satisfied = 0 OR child.state <> 'done'))
        AND (workflow_id IS NULL OR NOT EXISTS (
            SELECT 1 FROM job AS member WHERE member.workflow_id = old.workflow_id AND member.completed_at IS NULL))
    ORDER BY keep_until, seq LIMIT ?2
)
RETURNING id, idempotency_key, workflow_id
