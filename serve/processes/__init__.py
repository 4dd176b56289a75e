"""Processes of a service, the controller and the gateway: paths, startup, orders and reports."""
