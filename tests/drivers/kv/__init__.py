"""A small key-value store as a test driver: every verb is a step of the core, committed by compare-and-swap."""
