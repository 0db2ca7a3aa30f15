"""The demo: TaskHarbor's promises, checked on real processes. `tasks` is a good first read."""
