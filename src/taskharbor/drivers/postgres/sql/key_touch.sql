-- A job that is put back keeps a key that is still its own. The row is written anew, so that nobody takes it over who saw
-- it before. $1 key $2 owner
UPDATE harbor.keys SET owner = owner WHERE key = $1 AND owner = $2 RETURNING key
