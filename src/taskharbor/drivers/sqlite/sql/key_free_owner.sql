DELETE FROM keys WHERE owner = ?1
