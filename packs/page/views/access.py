"""Access to the page and to its acts, decided for each request before anything else handles it.

In: the method, path and headers of a request. Out: "" where it may pass, else why not. A page that anybody's browser
can reach on loopback must not be readable by other pages that are open in it, or by other users of the machine:

- a request names this server as its host, else some name was made to lead here (DNS rebinding);
- it comes from this page or from none, as `Origin` and `Sec-Fetch-Site` say;
- it carries the cookie that was given for the one-time token which stood in the terminal;
- an act carries a header besides, which no form and no other page can send without being allowed to.
"""

import hmac
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

ACT_HEADER = "slipway-act"
SAFE = ("GET", "HEAD")
OPEN_PATHS = ("/", "/api/session")  # and what is below /static: these hold no data of the user
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True)
class TurnedAway:
    """The refusal of a request, with its status and reason."""

    status: int
    why: str


@dataclass
class Gate:
    """The one door of the page. `hosts`: what a browser may call this server, as `name:port`."""

    hosts: tuple[str, ...]
    acts_allowed: bool = False
    _token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    _session: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    _turn: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def cookie(self) -> str:
        """Return the name of the cookie. Cookies do not know ports, so that two pages would share one."""
        return f"slipway_ui_{self.hosts[0].rpartition(':')[2]}"

    @property
    def token(self) -> str:
        """Return the token that can be exchanged now."""
        return self._token

    def exchange(self, token: str) -> str | None:
        """Return the cookie's value for the token, None where it is not, or no longer, the one that counts."""
        with self._turn:
            if not self._token or not hmac.compare_digest(token.encode(), self._token.encode()):
                return None
            self._token = ""
            return self._session

    def renew(self) -> bool:
        """Make a new token where none is left; return whether there was none.

        A token that nobody has used stays: any program of this machine can ask for a new one.
        """
        with self._turn:
            if self._token:
                return False
            self._token = secrets.token_urlsafe(32)
            return True

    def refuse(
        self, method: str, path: str, headers: Mapping[str, str], cookies: Mapping[str, str]
    ) -> TurnedAway | None:
        """Return the refusal of a request, None where it may pass. `headers`: by their names in lower case."""
        if headers.get("host", "").lower() not in self.hosts:
            return TurnedAway(
                421, "this server answers only under its own address; type the one that inv ui has printed"
            )
        origin = headers.get("origin")
        if origin is not None and origin.lower() not in [f"http://{one}" for one in self.hosts]:
            return TurnedAway(403, "another page has sent this")
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not _is_link(method, path, headers):
            return TurnedAway(403, "another page has sent this")
        if method not in SAFE and origin is None:
            return TurnedAway(403, "a request that changes something says which page it comes from")
        if path not in OPEN_PATHS and not path.startswith("/static/"):
            given = cookies.get(self.cookie, "")
            if not hmac.compare_digest(given.encode(), self._session.encode()):
                return TurnedAway(401, "open the link that inv ui has printed in its terminal")
        if path.startswith("/api/acts"):
            if not self.acts_allowed:
                return TurnedAway(403, "acts are off; begin the page with: inv ui --allow-acts")
            if headers.get(ACT_HEADER) != "1":
                return TurnedAway(403, f"an act needs the header {ACT_HEADER}: 1")
        return None


def _is_link(method: str, path: str, headers: Mapping[str, str]) -> bool:
    """Return whether somebody follows a link to the front page, which holds nothing by itself."""
    return method == "GET" and path == "/" and headers.get("sec-fetch-mode") == "navigate"
