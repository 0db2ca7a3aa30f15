-- Hold what has ended of these jobs, in an order that nobody crosses. Which they are, and in what state. $1 ids
SELECT job.id, ended.state FROM harbor.ended JOIN harbor.job USING (seq) WHERE job.id = ANY ($1::text[])
ORDER BY ended.seq FOR UPDATE OF ended
