SELECT state FROM job WHERE id = ?1
