"""Benchmarks of inference engines: quality of answers and speed."""
