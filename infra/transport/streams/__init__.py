"""Streams between machines: bounded reading, framing of output, and port forwards."""
