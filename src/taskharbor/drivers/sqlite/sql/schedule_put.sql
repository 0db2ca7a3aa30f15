-- An existing schedule keeps its pause and its last run.
INSERT INTO schedule (name, definition, slot, paused, last_job_id, last_slot) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT (name) DO UPDATE SET definition = ?2, slot = ?3
