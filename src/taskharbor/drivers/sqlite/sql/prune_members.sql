-- The last ones first: those that wait before those that they wait for. ?1 workflow ?2 limit
SELECT seq FROM job WHERE workflow_id = ?1 ORDER BY seq DESC LIMIT ?2
