-- $1 id $2 seen_at $3 record
INSERT INTO harbor.worker (id, seen_at, record) VALUES ($1, $2, $3)
ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at, record = excluded.record
