"""Broken statements of PostgreSQL, each with one text replaced."""

from . import claims, managing, outcomes, reading, storing
from .statements import REGISTRY, SQL, broken

MUTANTS = REGISTRY.mutants

__all__ = ["MUTANTS", "SQL", "broken", "claims", "managing", "outcomes", "reading", "storing"]
