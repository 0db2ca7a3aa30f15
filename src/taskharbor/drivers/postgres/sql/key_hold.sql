-- Hold keys, whomever they stand for, in the order in which everybody takes them. One that nobody has is held by a row
-- that stands for nobody, which whoever takes the key overwrites. $1 keys
INSERT INTO harbor.keys (key, owner, digest, expires_at)
SELECT key, '', '', '-infinity' FROM unnest($1::text[]) AS given (key) ORDER BY key
ON CONFLICT (key) DO UPDATE SET owner = excluded.owner WHERE false
