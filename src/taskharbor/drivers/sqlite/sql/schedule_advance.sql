-- ?1 name ?2 next slot ?3 job id, NULL for none ?4 its slot
UPDATE schedule SET slot = ?2, last_job_id = coalesce(?3, last_job_id), last_slot = iif(?3 IS NULL, last_slot, ?4)
WHERE name = ?1
