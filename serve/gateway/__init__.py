"""The only listener of a service: it lets in, chooses a replica, passes bytes on and counts. It starts no engine.

    asks      what may be asked, and what a body says      keys     who may ask
    routing   which replica takes it (pure)                turns    who waits until one is free
    upstream  one try at one replica                       proxy    tries, limits, the answer
    listener  connections of clients                       connections  kept to the engines
    wire      what both have in common                     eager    the tasks that wait on them
    metrics, access   what happened, in numbers and in lines
    server    the listener; `Gateway.replace` is told which replicas there are

httptools, prometheus_client and uvloop are of the `serve` environment.
"""
