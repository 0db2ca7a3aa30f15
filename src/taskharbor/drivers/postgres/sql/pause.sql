-- $1 queue
INSERT INTO harbor.paused (queue) VALUES ($1) ON CONFLICT DO NOTHING
