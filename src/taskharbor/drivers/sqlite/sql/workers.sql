SELECT record FROM worker WHERE seen_at >= ?1 ORDER BY id
