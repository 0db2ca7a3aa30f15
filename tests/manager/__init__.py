"""The TaskManager on every engine."""
