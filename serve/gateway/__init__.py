"""The only listener of a service: it authorizes, chooses a replica, passes bytes on and counts. It starts no engine.

    request_body  which routes and bodies are allowed      keys     API keys
    routing   which replica takes it (pure)                queue    who waits until one is free
    upstream  one try at one replica                       proxy    tries, limits, the answer
    http      connections of clients (listener) and to the engines (connections, reused), over one wire
    metrics, access   what happened, in numbers and in lines
    server    the listener; `Gateway.replace` is told which replicas there are

httptools, prometheus_client and uvloop are of the `serve` environment.
"""
