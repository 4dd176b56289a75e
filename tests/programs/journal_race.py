"""Write to the journal, concurrently with other processes, after reading a line."""

import sys

from infra.ledger.journal import Journal
from infra.ledger.op import AlreadyLive
from infra.names import new_token

with Journal.open() as journal:
    print("up", flush=True)
    sys.stdin.readline()
    for number in range(5):
        try:
            op = journal.plan(
                token=new_token(journal.installation),
                run=f"run-{sys.argv[1]}-{number}",
                vendor="local",
                target=f"t{number}",
                store="s",
            )
            print("won", number, flush=True)
        except AlreadyLive as taken:
            assert taken.op.target == f"t{number}"
