"""Small plays for a whole worker, nearly all in virtual time. Each is a promise that some mutant breaks."""

from . import clients, crews, flows, leases, outcomes, recurring, steps, supervising, tasks, working
from .stage import SCENES

__all__ = [
    "SCENES",
    "clients",
    "crews",
    "flows",
    "leases",
    "outcomes",
    "recurring",
    "steps",
    "supervising",
    "tasks",
    "working",
]
