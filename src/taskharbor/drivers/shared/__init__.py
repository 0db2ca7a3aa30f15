"""Shared by several drivers: claims, groups, drafts, damage, columns, statements and queries, addresses, TLS. Internal.

Only drivers import it. It imports the core and the seam, no driver; there is no base class here.
"""
