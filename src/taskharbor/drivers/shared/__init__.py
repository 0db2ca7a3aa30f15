"""What several drivers share: statements, columns, groups, outcomes, queries, addresses, idle connections. Internal.

Imports the core and the seam, no driver; there is no base class here.
"""
