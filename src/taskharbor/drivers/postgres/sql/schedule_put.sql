-- $1 names $2 definitions $3 slots $4 paused $5 last jobs $6 last slots
INSERT INTO harbor.schedule (name, definition, slot, paused, last_job_id, last_slot)
SELECT * FROM unnest($1::text[], $2::bytea[], $3::timestamptz[], $4::boolean[], $5::text[], $6::timestamptz[])
ON CONFLICT (name) DO UPDATE SET definition = excluded.definition, slot = excluded.slot, paused = excluded.paused,
    last_job_id = excluded.last_job_id, last_slot = excluded.last_slot
