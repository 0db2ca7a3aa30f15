"""The Redis driver, on a real Valkey."""
