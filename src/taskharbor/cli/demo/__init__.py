"""The demo: what TaskHarbor promises, watched on real processes. `tasks` is a good first read."""
