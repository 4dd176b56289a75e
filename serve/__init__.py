"""Model serving: service specs, autoscaling, replicas and the gateway. Imports serve, infra and store."""
