"""The demo: TaskHarbor's promises, checked on real processes. `tasks` is a good first read.

Only the command `demo` imports it. Like any application it imports `taskharbor`, beside what it shows and checks.
"""
