"""Engines behind one address: what a service wants, when it grows, who answers. Imports serve, infra and store."""
