-- The state of a job, held as it is until the transaction ends: a row of live, or of ended. $1 id
WITH living AS (
    SELECT live.state FROM harbor.live JOIN harbor.job USING (seq) WHERE job.id = $1 FOR UPDATE OF live
),
over AS (
    SELECT ended.state FROM harbor.ended JOIN harbor.job USING (seq) WHERE job.id = $1 FOR UPDATE OF ended
)
SELECT $1, state FROM living UNION ALL SELECT $1, state FROM over
