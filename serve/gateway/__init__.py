"""Gateway of a service, the only listener: authorizes requests, selects replicas, forwards bytes and counts.

    request_body  allowed routes and bodies                keys     API keys
    routing   choice of the replica (pure)                 queue    wait queue for a free replica
    upstream  a try at a replica                           proxy    tries, limits, the answer
    http      connections of clients (listener) and to the engines (connections, reused), over a shared wire
    metrics, access   numbers and log lines about requests
    server    the Gateway; `Gateway.replace` sets the replicas

The gateway starts no engine. httptools, prometheus_client and uvloop are of the `serve` environment.
"""
