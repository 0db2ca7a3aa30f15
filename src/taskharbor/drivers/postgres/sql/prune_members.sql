-- The members of workflows, of each the last ones first: those that wait before those that they wait for. $1 workflows
-- $2 limit for each
SELECT given.id, member.id FROM unnest($1::text[]) AS given (id) CROSS JOIN LATERAL (
    SELECT job.id, job.seq FROM harbor.job WHERE job.workflow_id = given.id ORDER BY job.seq DESC LIMIT $2
) AS member
ORDER BY given.id, member.seq DESC
