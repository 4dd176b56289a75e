"""Trackers: what tells a run's figures to W&B, MLflow, TensorBoard or a program of the user's, beside the run."""
