"""Jobs in processes of their own: `@harbor.task(process=True)`. Internal.

On the worker's side `pool` hands jobs to children, `slot` is one of them, and `turn` one job in it, which the thread of
`enforcer` ends in time; `child` and `job` are what runs there.
`messages` is all that the two sides know of each other. `worker.worker` imports the pool, nothing else does.

The path of a job: `Executor.run` → `ProcessPool.run` → `ProcessSlot.start`, which sends `Perform` → `ChildProgram` →
`ChildJobs.perform`, which sends `RunEnded` → `ProcessSlot._ended`, or `_exited` if the process died → `Turn.conclude`.
`ProcessPool.run` then returns the outcome, which is decided and settled like any other (`worker.pipeline`).
"""
