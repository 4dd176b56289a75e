"""`python -m tests.infra.ledger.holder CODE stays|leaves LEASE...`: hold leases of the journal under a version of the
code.

Prints "held" to stdout. Exits at SIGTERM, or ignores SIGTERM.
"""

import signal
import sys

from infra.ledger.journal import Journal

code, manner, *leases = sys.argv[1:]
if manner == "stays":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
with Journal.open() as journal:
    for lease in leases:
        journal.leases.acquire(lease, code)
    print("held", flush=True)
    while True:
        signal.pause()
