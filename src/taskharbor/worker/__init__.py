"""Running jobs: reserve → run → decide → settle, and the work beside it. Internal.

Harbor, manager, supervisor and command line import it. It imports client and workflows, no driver.

- `launcher` and `worker` start and stop; `worker` builds the parts.
- `reserver` claims jobs, `pipeline` takes each to its end: `starter`, `executor`, `decider`, `settler`.
- `crew` and `processes` run the handlers that do not run on the event loop.
- `keeper` renews leases; `upkeep` and `scheduler` do what is due beside jobs.
"""
