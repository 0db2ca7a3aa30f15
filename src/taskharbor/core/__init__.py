"""The rules of TaskHarbor as pure functions over values: no await, no clock, no chance, no I/O."""
