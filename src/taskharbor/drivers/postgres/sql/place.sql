-- Where a connection leads to, and whether our tables are there; asks the catalogue, which everybody may. $1 schema
SELECT current_database(), EXISTS (SELECT FROM pg_catalog.pg_tables WHERE schemaname = $1::text AND tablename = 'live')
