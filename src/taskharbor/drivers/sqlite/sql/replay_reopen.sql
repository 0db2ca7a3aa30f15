-- Jobs that were put back wait once more for parents whose failure they had collected, and that run again. ?1 ids
UPDATE edge SET satisfied = 0
WHERE child IN (SELECT value FROM json_each(?1)) AND satisfied = 1
    AND parent IN (SELECT job.id FROM job WHERE job.id = edge.parent AND job.completed_at IS NULL)
RETURNING child
