"""Benchmarks of engines: what they answer."""
