-- An existing schedule keeps its pause and its last run. $1 name $2 definition $3 slot $4 paused $5 last job $6 last slot
INSERT INTO harbor.schedule (name, definition, slot, paused, last_job_id, last_slot) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (name) DO UPDATE SET definition = excluded.definition, slot = excluded.slot
