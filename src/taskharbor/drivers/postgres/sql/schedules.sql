SELECT name, definition, slot, paused, last_job_id, last_slot FROM harbor.schedule ORDER BY name
