"""Jobs in processes of their own: `@harbor.task(process=True)`. Internal.

On the worker's side `pool` hands jobs to children and `slot` is one of them; `child` and `job` are what runs there.
`messages` is all that the two sides know of each other. `worker.worker` imports the pool, nothing else does.
"""
