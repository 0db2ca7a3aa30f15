"""Small plays for a whole worker in virtual time. Each is a promise of the runtime that some mutant breaks."""

from . import clients, flows, leases, outcomes, recurring, steps, supervising, tasks, working
from .stage import SCENES

__all__ = ["SCENES", "clients", "flows", "leases", "outcomes", "recurring", "steps", "supervising", "tasks", "working"]
