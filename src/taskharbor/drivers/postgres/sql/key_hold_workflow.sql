-- The keys of workflows, held until the step is over. $1 workflows
SELECT owner FROM harbor.keys WHERE owner = ANY ($1::text[]) ORDER BY key FOR UPDATE
