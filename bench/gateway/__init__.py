"""Measure what the gateway of a service costs: bodies of requests, and being killed."""
