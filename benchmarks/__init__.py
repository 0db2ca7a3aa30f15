"""How fast, compared with what the engine can do and with others on the same engine. `make bench` runs it all."""
