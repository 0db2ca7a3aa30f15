-- $1 minutes $2 queues $3 tasks $4 outcomes $5 counts $6 seconds
INSERT INTO harbor.tally (minute, queue, task, outcome, count, seconds)
SELECT * FROM unnest($1::timestamptz[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::float8[])
ON CONFLICT (minute, queue, task, outcome) DO UPDATE
SET count = tally.count + excluded.count, seconds = tally.seconds + excluded.seconds
