"""Write to the journal without end, and print the written rows."""

from infra.ledger.journal import Journal
from infra.names import new_token

journal = Journal.open()
print("up", flush=True)
while True:
    op = journal.plan(token=new_token(journal.installation), run="run", vendor="local", target="t", job="x" * 5000)
    print(op.token, flush=True)
    journal.advance(journal.advance(op, "sending"), "refused")
