INSERT OR REPLACE INTO schedule (name, definition, slot, paused, last_job_id, last_slot) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
