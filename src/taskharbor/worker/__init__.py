"""Running jobs: reserve, run, decide, settle, with the keeper, upkeep and the scheduler beside it.

Internal. I/O goes through the seam (`taskharbor.driver`), decisions come from the core.
"""
