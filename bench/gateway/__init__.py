"""Benchmarks of the gateway of a service: large request bodies, and recovery after a kill."""
