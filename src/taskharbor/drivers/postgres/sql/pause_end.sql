-- $1 queue
DELETE FROM harbor.paused WHERE queue = $1
