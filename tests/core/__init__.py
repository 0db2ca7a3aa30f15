"""Tests of the pure core: milliseconds, every branch, no clock and no dice."""
