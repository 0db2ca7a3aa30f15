-- $1 before
DELETE FROM harbor.tally WHERE minute < $1
