"""The processes of a service, its controller and its gateway: where they are found, started, told and heard."""
