"""Several workers under one parent: `taskharbor worker --processes N`. Internal.

The parent starts whole workers as processes, watches and replaces them, and gives up the leases of those that die (L9).
It imports nothing of the application: a child reports what the parent has to know (`messages`, sent by `link`). `fleet`
decides and does no I/O; `supervisor` starts, signals and reaps; `dead_leases` puts jobs back. Only the command line
imports this package; it opens no store by itself.
"""
