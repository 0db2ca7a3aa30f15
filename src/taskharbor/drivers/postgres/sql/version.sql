-- The newest step that was done, and the oldest version of the schema whose programs can work with it.
SELECT number, works_with FROM harbor.version ORDER BY number DESC LIMIT 1
