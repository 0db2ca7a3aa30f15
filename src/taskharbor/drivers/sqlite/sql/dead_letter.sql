-- A job in line, dead by hand. ?1 id ?2 now ?3 reason ?4 fingerprint ?5 keep_until ?6 for ever
UPDATE job SET state = 'dlq', lined = 0, dlq_reason = ?3, fingerprint = ?4, completed_at = ?2,
    keep_until = iif(kept, ?6, ?5)
WHERE id = ?1 AND (state = 'ready' OR state = 'waiting')
RETURNING keep_until
