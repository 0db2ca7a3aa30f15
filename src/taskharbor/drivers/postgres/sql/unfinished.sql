-- Which of these workflows have a member that has not ended; the last one is looked at first, for that is what the others
-- lead to. $1 workflows
SELECT given.id FROM unnest($1::text[]) AS given (id) CROSS JOIN LATERAL (
    SELECT FROM harbor.job JOIN harbor.live USING (seq) WHERE job.workflow_id = given.id ORDER BY job.seq DESC LIMIT 1
) AS member
