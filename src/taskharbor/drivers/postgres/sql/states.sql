-- The states of these jobs. $1 ids
SELECT id, coalesce(live.state, ended.state)
FROM harbor.job LEFT JOIN harbor.live USING (seq) LEFT JOIN harbor.ended USING (seq)
WHERE id = ANY ($1::text[])
