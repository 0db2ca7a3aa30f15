INSERT INTO keys (key, owner, digest, expires_at) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (key) DO UPDATE SET owner = ?2, digest = ?3, expires_at = ?4
