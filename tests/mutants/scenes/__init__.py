"""Small plays for a whole worker in virtual time. Each is a promise of the runtime that some mutant breaks."""

from . import blocking, clients, flows, leases, outcomes, recurring, steps, tasks, working
from .stage import SCENES

__all__ = ["SCENES", "blocking", "clients", "flows", "leases", "outcomes", "recurring", "steps", "tasks", "working"]
