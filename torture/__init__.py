"""Torture: what needs root or tools of the system. Power cuts, a kill at every system call, wrong clocks, long storms.
And what only takes long: a supervisor whose workers are killed a hundred times, cron at every change of every clock.

`python -m torture [power|syscalls|clock|storm|supervised|dst|all] [--minutes M]` from the root of the project. Each run
but the last ends in the history checker. What cannot be had here (a tool, root, a file system) is skipped, and the
summary says so and why.
"""

import sys
from pathlib import Path

# The crew of the system tests does the work here as well.
sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
