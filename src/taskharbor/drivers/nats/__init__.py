"""The driver for NATS JetStream: jobs in two streams, each page of them changed by compare-and-swap."""
