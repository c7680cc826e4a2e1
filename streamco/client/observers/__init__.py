"""Observers of a client's answers: metrics for Prometheus, spans for OpenTelemetry, and the interface for writing your own."""
