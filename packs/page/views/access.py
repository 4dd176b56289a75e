"""Access control for the page: decides for each request, before any other handler, whether the request may pass.

The server listens on loopback, which every browser and user of the machine can reach. The checks keep other web pages
and other users of the machine out:

- `Host` must name this server, against DNS rebinding.
- `Origin` and `Sec-Fetch-Site` must name this page or no page; a request that changes state must have an `Origin`.
- The session cookie must match. The cookie is handed out for the one-time token that the terminal shows.
- An action also needs a custom header, which forms cannot send and other pages cannot send without CORS permission.
"""

import hmac
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

ACT_HEADER = "slipway-act"
SAFE = ("GET", "HEAD")
OPEN_PATHS = ("/", "/api/session")  # together with paths below /static; these paths serve no user data
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True)
class RefusedRequest:
    """A refused request: HTTP status and reason."""

    status: int
    why: str


@dataclass
class Gate:
    """The access check of the page. `hosts` lists the accepted `Host` values, as `name:port`."""

    hosts: tuple[str, ...]
    acts_allowed: bool = False
    _token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    _session: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    _turn: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def cookie(self) -> str:
        """Return the cookie name. The name contains the port because browsers share cookies between ports of a host."""
        return f"slipway_ui_{self.hosts[0].rpartition(':')[2]}"

    @property
    def token(self) -> str:
        """Return the current one-time token; "" after use."""
        return self._token

    def exchange(self, token: str) -> str | None:
        """Consume the one-time token and return the session cookie's value, or None for a wrong or used token."""
        with self._turn:
            if not self._token or not hmac.compare_digest(token.encode(), self._token.encode()):
                return None
            self._token = ""
            return self._session

    def renew(self) -> bool:
        """Create a new token if the current token was used; return whether a token was created.

        Keep an unused token, because any local program can trigger a renewal.
        """
        with self._turn:
            if self._token:
                return False
            self._token = secrets.token_urlsafe(32)
            return True

    def refuse(
        self, method: str, path: str, headers: Mapping[str, str], cookies: Mapping[str, str]
    ) -> RefusedRequest | None:
        """Return the refusal of a request, or None to let the request pass. Header names are in lower case."""
        if headers.get("host", "").lower() not in self.hosts:
            return RefusedRequest(
                421, "this server answers only at the address that inv ui has printed; use this address"
            )
        origin = headers.get("origin")
        if origin is not None and origin.lower() not in [f"http://{one}" for one in self.hosts]:
            return RefusedRequest(403, "the request came from another page")
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not _is_link(method, path, headers):
            return RefusedRequest(403, "the request came from another page")
        if method not in SAFE and origin is None:
            return RefusedRequest(403, "a request with changes needs the header Origin")
        if path not in OPEN_PATHS and not path.startswith("/static/"):
            given = cookies.get(self.cookie, "")
            if not hmac.compare_digest(given.encode(), self._session.encode()):
                return RefusedRequest(401, "open the link that inv ui has printed in the terminal")
        if path.startswith("/api/acts"):
            if not self.acts_allowed:
                return RefusedRequest(403, "acts are off; start the page with: inv ui --allow-acts")
            if headers.get(ACT_HEADER) != "1":
                return RefusedRequest(403, f"an act needs the header {ACT_HEADER}: 1")
        return None


def _is_link(method: str, path: str, headers: Mapping[str, str]) -> bool:
    """Return True for a followed link to the front page, which contains no user data."""
    return method == "GET" and path == "/" and headers.get("sec-fetch-mode") == "navigate"
