"""OTLP in, over gRPC and HTTP. A request is acknowledged when the intake has it on disk."""
