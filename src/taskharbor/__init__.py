"""TaskHarbor: durable background jobs for Python."""
