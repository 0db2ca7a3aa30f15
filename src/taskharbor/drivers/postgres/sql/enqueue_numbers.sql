-- Numbers for so many rows. $1 how many
SELECT array_agg(nextval('harbor.job_seq_seq')) FROM generate_series(1, $1)
