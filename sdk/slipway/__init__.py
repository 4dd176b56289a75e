"""Modules for a user's own jobs, importable on any Slipway pod: `from slipway import checkpoint`."""
