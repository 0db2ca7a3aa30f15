-- A number that all jobs to come are behind.
SELECT nextval('harbor.job_seq_seq')
