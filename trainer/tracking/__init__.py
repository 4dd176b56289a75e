"""Trackers: sidecar processes for forwarding a run's metrics to a tracking service or to the user's program."""
