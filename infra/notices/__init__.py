"""Notices: what people are told about runs, services and accounts, by the hooks that they have named."""
