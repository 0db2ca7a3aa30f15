-- Whether the slot is still the expected one; nobody else can move it until the step is over. $1 name $2 slot
SELECT 1 FROM harbor.schedule WHERE name = $1 AND slot IS NOT DISTINCT FROM $2::timestamptz AND NOT paused FOR UPDATE
