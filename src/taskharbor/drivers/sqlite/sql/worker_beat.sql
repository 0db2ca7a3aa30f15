INSERT INTO worker (id, seen_at, record) VALUES (?1, ?2, ?3)
ON CONFLICT (id) DO UPDATE SET seen_at = ?2, record = ?3
