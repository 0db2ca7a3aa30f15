"""Flows and graphs as values, and workflows that were enqueued. Internal: applications import `taskharbor.flow`."""
