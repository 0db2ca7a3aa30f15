-- $1 names
SELECT name, definition, slot, paused, last_job_id, last_slot FROM harbor.schedule WHERE name = ANY ($1::text[])
