SELECT name, definition, slot, paused, last_job_id, last_slot FROM schedule ORDER BY name
