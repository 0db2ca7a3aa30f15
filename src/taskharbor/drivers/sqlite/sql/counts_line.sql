-- Jobs in line by queue: all, those that are due, and since when the first one is. ?1 now
SELECT queue, count(*), sum(place <= ?1), min(place) FROM job WHERE lined > 0 AND lined = 1 GROUP BY queue
