"""`harbor.admin`: what operators see and do. Internal; every rule is the driver's or the core's.

The harbor and the command line import it. It imports client and workflows, no worker and no driver.
"""
