"""The only listener of a service: it lets in, chooses a replica, passes bytes on and counts. It starts no engine.

    asks      what may be asked, and what a body says      keys     who may ask
    routing   which replica takes it (pure)                turns    who waits until one is free
    upstream  one try at one replica                       proxy    tries, limits, the answer
    listener  connections of clients
    connections  kept to the engines
    metrics, access   what happened, in numbers and in lines
    server    the listener; `Gateway.replace` is told which replicas there are

aiohttp, prometheus_client and uvloop are of the `serve` environment: connections, upstream, proxy, metrics, server and
__main__ import them, and nothing else of serve but the scripted engine does.
"""
