"""Flows and graphs as values, and workflows that were enqueued. Internal: applications import `taskharbor.flow`.

- `flow`, `graph` and `step` lay steps out; `plan` makes jobs and edges of them.
- `run` and `stored` are workflows in the store; `parent_results` reads what a step takes.

Worker and admin import it; it imports client, no worker and no driver.
"""
