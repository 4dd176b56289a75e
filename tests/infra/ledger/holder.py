"""`python -m tests.infra.ledger.holder CODE stays|leaves LEASE...`: hold leases of the journal, telling that code.

Says "held" on stdout. Leaves at SIGTERM, or stays all the same.
"""

import signal
import sys

from infra.ledger.journal import Journal

code, manner, *leases = sys.argv[1:]
if manner == "stays":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
with Journal.open() as journal:
    for lease in leases:
        journal.leases.take(lease, code)
    print("held", flush=True)
    while True:
        signal.pause()
