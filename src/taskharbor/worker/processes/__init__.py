"""Jobs in processes of their own: `@harbor.task(process=True)`. Internal.

On the worker's side `pool` hands jobs to children, `slot` is one of them, and `turn` one job in it, which the thread of
`enforcer` ends in time; `child` and `job` are what runs there.
`messages` is all that the two sides know of each other. `worker.worker` imports the pool, nothing else does.
"""
