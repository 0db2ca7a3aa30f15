-- Take back what a refused group has inserted in this transaction.
DELETE FROM job WHERE seq > ?1
