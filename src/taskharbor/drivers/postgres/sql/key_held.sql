-- A condition on a row `known` of `keys`: its owner, a job or a workflow, has not ended (I2). Not as joins, for which whole
-- tables might be read.
(
    (SELECT live.seq FROM harbor.live WHERE live.seq = (
        SELECT job.seq FROM harbor.job WHERE job.id = known.owner)) IS NOT NULL
    OR (SELECT job.seq FROM harbor.job WHERE job.workflow_id = known.owner
        AND (SELECT live.seq FROM harbor.live WHERE live.seq = job.seq) IS NOT NULL LIMIT 1) IS NOT NULL
)
