INSERT INTO tally (minute, queue, task, outcome, count, seconds) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT (minute, queue, task, outcome) DO UPDATE SET count = count + ?5, seconds = seconds + ?6
