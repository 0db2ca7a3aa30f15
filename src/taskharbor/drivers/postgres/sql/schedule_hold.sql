-- Keep others from swapping schedules of these names, also of those that do not exist yet, until the step is over. In one
-- order, so that nobody waits for each other; and few locks, of which a server has not many. $1 names
SELECT pg_advisory_xact_lock(hashtextextended('harbor.schedule', place))
FROM (SELECT DISTINCT hashtext(name) & 63 AS place FROM unnest($1::text[]) AS name ORDER BY place) AS places
