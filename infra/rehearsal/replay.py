"""A vendor that says again what a recording says it has said: a server on loopback, for one vendor's own client.

In: the answers that are due, in their order. Out: those answers, at the time of the recording, to requests of the same
method and path; whatever is asked otherwise is refused, and noted.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from urllib.parse import urlencode

from infra.drill.recording import Recorded
from infra.rehearsal import web
from infra.rehearsal.faults import Faults, Plan


class Replay(web.Api):
    """The API of whoever was recorded. `at`: what time it is there."""

    def __init__(self, began_at: float) -> None:
        self.at = began_at
        self.due: deque[Recorded] = deque()
        self.otherwise: list[str] = []
        self.is_lost = False

    def authenticate(self, asked: web.Asked) -> web.Answer | bool:
        return True

    def error(self, status: int, words: str) -> web.Answer:
        return web.Answer(status, {"error": words})

    def route(self, asked: web.Asked) -> web.Route | web.Answer:
        return web.Route(asked.method, ".*", "replay", self._again)

    def expect(self, answers: Iterable[Recorded]) -> None:
        """Set the next answers; earlier ones that were not asked for are noted."""
        self.otherwise += [f"{one.method} {one.path} was asked then, and is not now" for one in self.due]
        self.due = deque(answers)

    def _again(self, asked: web.Asked) -> web.Answer:
        path = f"{asked.path}?{urlencode(list(asked.query.items()))}" if asked.query else asked.path
        if not self.due or (self.due[0].method, self.due[0].path) != (asked.method, path):
            then = f"{self.due[0].method} {self.due[0].path}" if self.due else "nothing"
            self.otherwise.append(f"{asked.method} {path} is asked, {then} was asked then")
            return self.error(404, "this was not asked when the recording was made")
        one = self.due.popleft()
        self.at, self.is_lost = max(self.at, one.at), one.is_lost
        return web.Answer(one.status, one.answer)


@contextmanager
def serving(replay: Replay) -> Iterator[str]:
    """Yield the address at which it answers."""
    hub = web.Hub(Faults(Plan()), lambda: replay.at, lambda: None)
    server = web.Server(replay, hub)
    thread = web.serve(server)
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        hub.is_closing.set()
        server.shutdown()
        server.server_close()
        thread.join()
