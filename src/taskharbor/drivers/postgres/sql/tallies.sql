-- $1 since
SELECT minute, queue, task, outcome, count, seconds FROM harbor.tally WHERE minute >= $1 ORDER BY minute, queue, task, outcome
