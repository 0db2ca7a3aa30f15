"""What runs: clients and workers. I/O goes through the seam (`taskharbor.driver`), decisions come from the core."""
