-- Schedules, workers and counters.

-- name: schedules
SELECT name, definition, slot, paused, last_job_id, last_slot FROM schedule ORDER BY name

-- name: schedule_get
-- ?1 name
SELECT name, definition, slot, paused, last_job_id, last_slot FROM schedule WHERE name = ?1

-- name: schedule_put
-- ?1 name ?2 definition ?3 slot ?4 paused ?5 last job ?6 last slot
INSERT OR REPLACE INTO schedule (name, definition, slot, paused, last_job_id, last_slot) VALUES (?1, ?2, ?3, ?4, ?5, ?6)

-- name: schedule_remove
-- ?1 name
DELETE FROM schedule WHERE name = ?1

-- name: worker_beat
-- ?1 id ?2 seen_at ?3 record
INSERT INTO worker (id, seen_at, record) VALUES (?1, ?2, ?3)
ON CONFLICT (id) DO UPDATE SET seen_at = ?2, record = ?3

-- name: workers
-- ?1 seen since
SELECT record FROM worker WHERE seen_at >= ?1 ORDER BY id

-- name: worker_forget
-- ?1 id
DELETE FROM worker WHERE id = ?1

-- name: tally_add
-- ?1 minute ?2 queue ?3 task ?4 outcome ?5 count ?6 seconds ?7 waited
INSERT INTO tally (minute, queue, task, outcome, count, seconds, waited) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
ON CONFLICT (minute, queue, task, outcome) DO UPDATE
SET count = count + ?5, seconds = seconds + ?6, waited = waited + ?7

-- name: tally_forget
-- ?1 before
DELETE FROM tally WHERE minute < ?1

-- name: tallies
-- ?1 since
SELECT minute, queue, task, outcome, count, seconds, waited FROM tally
WHERE minute >= ?1 ORDER BY minute, queue, task, outcome
