-- $1 id
SELECT seq FROM harbor.job WHERE id = $1
