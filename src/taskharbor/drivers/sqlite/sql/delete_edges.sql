DELETE FROM edge WHERE child IN (SELECT value FROM json_each(?1)) OR parent IN (SELECT value FROM json_each(?1))
