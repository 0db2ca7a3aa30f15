SELECT minute, queue, task, outcome, count, seconds FROM tally
WHERE minute >= ?1 ORDER BY minute, queue, task, outcome
