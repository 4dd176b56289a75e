"""Trackers: what tells a run's figures to a service or a program of the user's, beside the run."""
