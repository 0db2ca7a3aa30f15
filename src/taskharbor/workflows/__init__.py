"""Flows and graphs as values, and workflows that were enqueued.

Internal: `taskharbor.flow` is what applications import.
"""
