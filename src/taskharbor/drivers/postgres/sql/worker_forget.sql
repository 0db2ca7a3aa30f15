-- $1 id
DELETE FROM harbor.worker WHERE id = $1
