SELECT name, definition, slot, paused, last_job_id, last_slot FROM schedule WHERE name = ?1
