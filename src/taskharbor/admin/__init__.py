"""`harbor.admin`: what operators see and do. Internal; every rule is the driver's or the core's."""
