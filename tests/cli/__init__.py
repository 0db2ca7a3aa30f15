"""The command line, against real SQLite files and real processes."""
