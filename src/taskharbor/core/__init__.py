"""The rules of TaskHarbor as pure functions over values: no await, no clock, no randomness, no I/O.

Internal to the library and its drivers; docs/reference.md lists what drivers of other packages may rely on. Every other
package may import it; it imports only `taskharbor.errors`.
"""
