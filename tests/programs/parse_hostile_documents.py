"""Parse hostile documents within 300 MB of memory."""

import resource

from store import untrusted_input

resource.setrlimit(resource.RLIMIT_AS, (300 << 20, 300 << 20))
for document in (b"[" * 16_000_000, b'{"a":' * 3_000_000, b"[[]," * 4_000_000, b'["' + b"\\" * 15_000_000):
    try:
        untrusted_input.parse(document)
    except untrusted_input.UnusableDocument:
        continue
    raise SystemExit("it was read")
