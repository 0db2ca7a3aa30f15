"""Leftovers of these tests are collected with them."""

from complaints import nothing_left_behind

__all__ = ["nothing_left_behind"]
