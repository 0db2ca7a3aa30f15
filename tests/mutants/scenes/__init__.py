"""Small plays for a whole worker in virtual time. Each is a promise of the runtime that some mutant breaks.

Those of `REAL` are played by processes, in real time.
"""

from . import clients, flows, leases, outcomes, processes, recurring, steps, tasks, working
from .processes import REAL
from .stage import SCENES

__all__ = [
    "REAL",
    "SCENES",
    "clients",
    "flows",
    "leases",
    "outcomes",
    "processes",
    "recurring",
    "steps",
    "tasks",
    "working",
]
