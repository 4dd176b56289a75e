"""The provider of an extension: for any user code, this module returns only records and raises only SlipwayErrors.

    provider(settings) of an extension -> six verbs, each called with a timeout, and each answer checked

Pods of an extension cost money like a vendor's pods: with a price, a limit, a row in the journal, a guard and a proven
end. Each verb runs in a separate thread, since the user's code may never return, and the caller waits with a timeout.
After an error in `create` other than a SlipwayError, a machine may have been rented, so Slipway looks for the machine.
"""

import difflib
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from infra.agent.job import Limits
from infra.errors import Ambiguous, SlipwayError, UsageError
from infra.providers import Abilities, Market, promises, rows
from infra.providers.pod_keys import PodKeys
from infra.providers.promises import DrillRecord
from infra.records import Account, Offer, Pod, Request
from infra.settings import Settings
from infra.transport.protocol import Transport
from store.extensions import Extension, ExtensionError
from store.extensions.run import call_with_timeout, error_with_line, function

VERBS = ("account", "offers", "create", "find", "list", "delete")
ASK_S = 60.0
CREATE_S = 300.0

T = TypeVar("T")


class OwnProvider(Market):
    """The provider added by an extension."""

    name, documented = "", Abilities()
    is_here, is_rented = False, True
    pod_store, skew_problem, clock_scale = "", "", 1.0

    def __init__(self, extension: Extension, settings: Settings, ask_s: float = ASK_S) -> None:
        """Run the extension and create the provider. Raise UsageError with the failing line."""
        self.extension, self.ask_s, self.name = extension, ask_s, extension.name
        self.keys = PodKeys.for_journal(settings.state_file)
        self.drills = DrillRecord.from_settings(extension.name, settings)
        try:
            self.theirs, can = self._call_with_timeout("provider", lambda: _made(extension, settings), ask_s)
        except _UserCodeError as error:
            raise UsageError(str(error)) from error
        tells_bills = callable(getattr(self.theirs, "billed", None))
        self.documented = replace(self._checked("can", can, Abilities), tells_bills=tells_bills)

    def _call_verb(self, verb: str, *words: Any) -> Any:
        return self._call_with_timeout(verb, lambda: getattr(self.theirs, verb)(*words), self.ask_s)

    def _call_with_timeout(self, verb: str, call: Callable[[], T], limit_s: float) -> T:
        """Return the result of `call`. Raise SlipwayErrors unchanged, _UserCodeError for other errors or a timeout."""
        made, error = call_with_timeout(call, f"{self.name} {verb}", limit_s)
        if made:
            return made[0]
        if error is None:
            raise _UserCodeError(f"{self.name}: {verb} has not answered in {limit_s:g} s ({self.extension.where})")
        if isinstance(error, SlipwayError):
            raise error
        raise _UserCodeError(f"{self.name}: {verb}: {error_with_line(self.extension, error)}") from error

    def _checked(self, verb: str, value: Any, kind: type[T]) -> T:
        if not isinstance(value, kind) or isinstance(value, bool):
            raise SlipwayError(
                f"{self.name}: {verb} returned {_kind_of(value)}; expected {_article(kind)} ({self._place(verb)})"
            )
        return value

    def _all(self, verb: str, value: Any, kind: type[T]) -> "list[T]":
        if not isinstance(value, (list, tuple)):
            raise SlipwayError(
                f"{self.name}: {verb} returned {_kind_of(value)}; expected a list of {kind.__name__} "
                f"({self._place(verb)})"
            )
        return [self._checked(f"a row of {verb}", one, kind) for one in value]

    def _place(self, verb: str) -> str:
        """Return the file of the extension, with the line of the method."""
        code = getattr(getattr(type(self.theirs), verb.rpartition(" ")[2], None), "__code__", None)
        return f"{self.extension.where}:{code.co_firstlineno}" if code else self.extension.where

    @property
    def settle_s(self) -> float:
        return self.documented.settle_s

    @property
    def can(self) -> Abilities:
        return self.can_at("")

    def can_at(self, api: str) -> Abilities:
        return promises.abilities(self.documented, (), self.drills.verdicts(), api, time.time())

    def check_self_end(self) -> str:
        """Raise UsageError: an extension does not say how the pods end themselves."""
        raise UsageError(
            f"--self-end: {self.name} comes from an extension, whose pods cannot end themselves; leave --self-end out"
        )

    def account(self) -> Account:
        found = self._checked("account", self._call_verb("account"), Account)
        return replace(found, provider=self.name)

    def offers(self, request: Request) -> list[Offer]:
        from infra.market.filters import satisfying

        return satisfying(request, self.catalog(request))

    def catalog(self, request: Request) -> "list[Offer]":
        found = self._all("offers", self._call_verb("offers", request), Offer)
        return [replace(one, provider=self.name) for one in found]

    def create(self, request: Request, offer: Offer, token: str, limits: Limits) -> Pod:
        """Rent as `Provider` specifies. Raise Ambiguous for an unclear answer of the extension: the pod may exist."""
        self.keys.ensure_public_key(token)  # made before the pod, whether or not the extension uses the key
        try:
            pod = self._call_with_timeout(
                "create", lambda: self.theirs.create(request, offer, token, limits), max(CREATE_S, self.ask_s)
            )
        except _UserCodeError as error:
            raise Ambiguous(f"{error}; a machine may have been rented") from error
        try:
            found = replace(self._checked("create", pod, Pod), provider=self.name)
        except SlipwayError as error:
            raise Ambiguous(f"{error}; a machine may have been rented") from None
        if not found.pod_id or found.token != token:
            raise Ambiguous(
                f"{self.name}: create returned the pod {found.pod_id!r} with the token {found.token!r} "
                f"instead of {token}; a machine may have been rented"
            )
        return found

    def find(self, pod: str) -> Pod | None:
        """Return the pod as `Provider` specifies. Raise SlipwayError if the extension returned a different pod."""
        found = self._call_verb("find", pod)
        if found is None:
            return None
        told = replace(self._checked("find", found, Pod), provider=self.name)
        if pod not in (told.pod_id, told.token):
            raise SlipwayError(f"{self.name}: asked for {pod}, find returned {told.pod_id or told.token!r}")
        return told

    def list(self) -> "list[Pod]":
        found = [replace(one, provider=self.name) for one in self._all("list", self._call_verb("list"), Pod)]
        return rows.complete_listing(self.name, found, ())

    def delete(self, pod_id: str) -> None:
        self._call_verb("delete", pod_id)

    def reach(self, pod: Pod) -> Transport:
        """Return the transport: SSH with the pod's own key, unless the extension has a `reach` of its own."""
        if callable(getattr(self.theirs, "reach", None)):
            found: Transport = self._call_verb("reach", pod)
            return found
        return self.keys.transport_to(pod)

    def delete_local_files(self, token: str) -> None:
        self.keys.delete(token)

    def now(self) -> float:
        return time.time()

    def billed(self, pod_id: str) -> int | None:
        """Return the bill in micro-USD, or None if the extension does not report bills."""
        if not callable(getattr(self.theirs, "billed", None)):
            return None
        found = self._call_verb("billed", pod_id)
        return None if found is None else self._checked("billed", found, int)


class _UserCodeError(SlipwayError):
    """The user's code raised an error other than a SlipwayError, or did not return."""


def _made(extension: Extension, settings: Settings) -> tuple[Any, Any]:
    """Return the extension's provider and the abilities. Raise UsageError, or any error of the user's code."""
    try:
        make = function(extension, "provider")
    except ExtensionError as error:
        raise UsageError(str(error)) from error
    theirs = make(settings)
    for verb in VERBS:
        if not callable(getattr(theirs, verb, None)):
            raise UsageError(f"{extension.place('provider')}: the provider has no {verb}{_nearest(verb, theirs)}")
    return theirs, getattr(theirs, "can", Abilities())


def _nearest(verb: str, theirs: Any) -> str:
    """Return the end of an error message: the most similar method with the line, else the existing methods."""
    if not hasattr(type(theirs), "__dict__") or type(theirs).__module__ == "builtins":
        return f"; provider returned {_kind_of(theirs)}"
    methods = [one for one in dir(type(theirs)) if not one.startswith("_") and callable(getattr(theirs, one, None))]
    near = difflib.get_close_matches(verb, methods, 1)
    if not near:
        return f"; the provider has {', '.join(methods)}" if methods else f"; the provider is {_kind_of(theirs)}"
    code = getattr(getattr(type(theirs), near[0]), "__code__", None)
    line = f"line {code.co_firstlineno} has {near[0]}" if code else f"the provider has {near[0]}"
    return f"; {line}; is this the intended method?"


def _kind_of(value: Any) -> str:
    return "nothing" if value is None else f"{_article(type(value))}"


def _article(kind: type) -> str:
    return f"{'an' if kind.__name__[0] in 'aeiouAEIO' else 'a'} {kind.__name__}"
