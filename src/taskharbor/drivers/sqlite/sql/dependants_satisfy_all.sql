-- These jobs have succeeded; whose edges that satisfies. ?1 ids
UPDATE edge SET satisfied = 1 WHERE satisfied = 0 AND parent IN (SELECT value FROM json_each(?1)) RETURNING child
