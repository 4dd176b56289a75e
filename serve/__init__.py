"""Engines behind one endpoint: the spec of a service, its autoscaling, its gateway. Imports serve, infra and store."""
