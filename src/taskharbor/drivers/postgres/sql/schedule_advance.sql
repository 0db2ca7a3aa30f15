-- $1 name $2 next slot $3 job id, NULL for none $4 its slot
UPDATE harbor.schedule SET slot = $2, last_job_id = coalesce($3::text, last_job_id),
    last_slot = CASE WHEN $3::text IS NULL THEN last_slot ELSE $4 END
WHERE name = $1
