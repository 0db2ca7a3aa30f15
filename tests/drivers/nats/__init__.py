"""The driver for NATS JetStream."""
