DELETE FROM worker WHERE id = ?1
