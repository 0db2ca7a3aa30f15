"""What operators see and do: `harbor.admin`.

Internal. Thin: every rule is the driver's or the core's.
"""
