-- $1 seen since
SELECT record FROM harbor.worker WHERE seen_at >= $1 ORDER BY id
