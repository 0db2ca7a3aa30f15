-- ?1 workflow ?2 until
UPDATE job SET keep_until = ?2 WHERE workflow_id = ?1 AND keep_until < ?2
