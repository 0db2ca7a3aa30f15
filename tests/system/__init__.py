"""Real processes on one SQLite file, real signals, and the history checker at the end of every run."""
