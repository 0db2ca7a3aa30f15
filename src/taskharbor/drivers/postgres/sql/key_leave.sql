-- Forget those of key_hold.sql that nobody took. $1 keys
DELETE FROM harbor.keys WHERE key = ANY ($1::text[]) AND owner = ''
