"""Getting jobs into the store: sessions, options, steps, batching, handles, and the blocking face.

Internal. Imports the core and the seam (`taskharbor.driver`); knows no driver, no worker and no command.
"""
