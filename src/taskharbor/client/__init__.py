"""Getting jobs into the store: sessions, options, batching, handles, the blocking face. Internal.

Every layer above imports it; it imports no workflow, worker or driver.

- `registered_task`, `options` and `naming`: a task and its options.
- `job_builder`, `enqueue` and `client`: from a call to stored jobs; `handle` is what the caller gets.
- `session`, `clock` and `batching`: the open store, its time, and commits that calls share.
- `portal` and `blocks`: the blocking face.
"""
