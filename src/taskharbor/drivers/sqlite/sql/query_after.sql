SELECT seq FROM job WHERE id = ?1
