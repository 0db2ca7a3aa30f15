"""Real servers for tests, started when a test asks for one, shared by the whole run, and never left behind."""
