"""Small plays for a whole worker, nearly all in virtual time. Each is a promise that some mutant breaks.

Those of `REAL` are played by processes, in real time.
"""

from . import (
    blocking,
    clients,
    crews,
    flows,
    leases,
    outcomes,
    processes,
    recurring,
    steps,
    supervising,
    tasks,
    working,
)
from .processes import REAL
from .stage import SCENES

__all__ = [
    "REAL",
    "SCENES",
    "blocking",
    "clients",
    "crews",
    "flows",
    "leases",
    "outcomes",
    "processes",
    "recurring",
    "steps",
    "supervising",
    "tasks",
    "working",
]
