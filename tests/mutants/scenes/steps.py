"""Clients of a key-value store whose steps interleave, judged by the memory store."""

from __future__ import annotations

from drivers.kv.interleaving import Play

from .stage import SCENES

SEEDS = 1_700


def interleaved_steps_are_serial() -> None:
    """A broken step may also trip over what it has written."""
    for seed in range(SEEDS):
        try:
            Play(seed).run()
        except LookupError as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error


SCENES[interleaved_steps_are_serial.__name__] = interleaved_steps_are_serial
