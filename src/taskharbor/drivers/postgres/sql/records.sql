-- Schedules, workers and counters.

-- name: schedules
SELECT name, definition, slot, paused, last_job_id, last_slot FROM harbor.schedule ORDER BY name

-- name: schedule_get
-- $1 names
SELECT name, definition, slot, paused, last_job_id, last_slot FROM harbor.schedule WHERE name = ANY ($1::text[])

-- name: schedule_hold
-- Keep other transactions from swapping schedules of these names, including names that do not exist yet. In one
-- order, so that two never wait for each other; and few locks, of which a server has a limited number. $1 names
SELECT pg_advisory_xact_lock(hashtextextended('harbor.schedule', place))
FROM (SELECT DISTINCT hashtext(name) & 63 AS place FROM unnest($1::text[]) AS name ORDER BY place) AS places

-- name: schedule_put
-- $1 names $2 definitions $3 slots $4 paused $5 last jobs $6 last slots
INSERT INTO harbor.schedule (name, definition, slot, paused, last_job_id, last_slot)
SELECT * FROM unnest($1::text[], $2::bytea[], $3::timestamptz[], $4::boolean[], $5::text[], $6::timestamptz[])
ON CONFLICT (name) DO UPDATE SET definition = excluded.definition, slot = excluded.slot, paused = excluded.paused,
    last_job_id = excluded.last_job_id, last_slot = excluded.last_slot

-- name: schedule_remove
-- $1 names
DELETE FROM harbor.schedule WHERE name = ANY ($1::text[])

-- name: worker_beat
-- $1 id $2 seen_at $3 record
INSERT INTO harbor.worker (id, seen_at, record) VALUES ($1, $2, $3)
ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at, record = excluded.record

-- name: workers
-- $1 seen since
SELECT record FROM harbor.worker WHERE seen_at >= $1 ORDER BY id

-- name: worker_forget
-- $1 id
DELETE FROM harbor.worker WHERE id = $1

-- part: tally_sum
-- Each connection adds to rows of its own: with one row for all, every settle would wait for the commit of another.
ON CONFLICT (minute, queue, task, outcome, backend) DO UPDATE
SET count = tally.count + excluded.count, seconds = tally.seconds + excluded.seconds, waited = tally.waited + excluded.waited

-- name: tally_add
-- $1 minute $2 queues $3 tasks $4 outcomes $5 counts $6 seconds $7 waited
INSERT INTO harbor.tally (minute, queue, task, outcome, backend, count, seconds, waited)
SELECT $1, queue, task, outcome, pg_backend_pid(), count, seconds, waited
FROM unnest($2::text[], $3::text[], $4::text[], $5::bigint[], $6::float8[], $7::float8[])
    AS given (queue, task, outcome, count, seconds, waited)
-- include: tally_sum

-- name: tally_forget
-- $1 before
DELETE FROM harbor.tally WHERE minute < $1

-- name: tallies
-- $1 since
SELECT minute, queue, task, outcome, sum(count)::bigint, sum(seconds), sum(waited) FROM harbor.tally
WHERE minute >= $1 GROUP BY minute, queue, task, outcome ORDER BY minute, queue, task, outcome
