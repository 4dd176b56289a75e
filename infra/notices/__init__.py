"""Notices about runs, services and accounts, sent to people through named hooks."""
