"""`python -m tests.trainer.rewards.escaping JAIL ABI PLACE WORLD` prints the successful escapes as JSON.

PLACE is `machine`, or `container`, which refuses namespaces and mounts, like Docker by default; WORLD are the names
that the programs use. Only the standard library and the sandbox are imported, so a bare Python can run the program.
"""

import contextlib
import ctypes
import errno
import json
import platform
import struct
import sys
from typing import Any

from tests.trainer.rewards.escapes import PREFIX, native_calls
from tests.trainer.rewards.programs import programs
from trainer.rewards import jail
from trainer.rewards.sandbox import system_calls

# Refused before the kernel reads the arguments.
UNSEEN = {errno.EPERM, errno.ENOSYS, errno.ENOTTY}
OUT_OF_REACH = UNSEEN | {errno.EACCES, errno.ENOENT}
# unshare, setns, mount, umount2, pivot_root, clone3
DOCKER = {"x86_64": (272, 308, 165, 166, 155, 435), "aarch64": (97, 268, 40, 39, 41, 435)}


def main() -> None:
    """Print {"layers", "calls", "through"}: the number of attempts, and the attempts that were not refused."""
    kind, version, place, world = sys.argv[1], int(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4])
    if place == "container":
        docker()
    with contextlib.closing(jail.Jail(kind, version)) as one:
        through, tried = escapes(one, world)
        print(json.dumps({"layers": one.layers(), "tried": tried, "through": through}))


def escapes(one: jail.Jail, world: dict[str, Any]) -> tuple[dict[str, str], int]:
    """Return the escapes that were not refused, by name, and the number of all escapes."""
    names = "".join(f"{name} = {value!r}\n" for name, value in world.items())
    raw = f"{names}PATH, FOLDER = PATH.encode(), FOLDER.encode()\n{PREFIX}"
    calls = {
        name: f"refused(lambda: call({', '.join(filter(None, (str(number), some)))}))"
        for name, (number, some) in native_calls().items()
    }
    own = programs("escapes.txt")
    defined = (
        names
        + PREFIX
        + "".join(f"{code.replace('def f(', f'def f{place}(')}\n" for place, code in enumerate(own.values()))
    )
    through = _not_refused(one, raw, calls, UNSEEN)
    through |= _not_refused(one, defined, {name: f"refused(f{place})" for place, name in enumerate(own)}, OUT_OF_REACH)
    return through, len(calls) + len(own)


def _not_refused(one: jail.Jail, code: str, asked: dict[str, str], good: set[int]) -> dict[str, str]:
    found = one.run_answer(code, list(asked.values()), [], "").calls
    return {
        name: said.error or repr(said.plain)
        for name, said in zip(asked, found, strict=True)
        if said.error or said.plain not in good
    }


def docker() -> None:
    """Let the kernel refuse namespaces and mounts to this process and its children."""
    machine = platform.machine()
    steps = [(system_calls.LOAD, 0, 0, 0)]
    for number in DOCKER[machine]:
        error = errno.ENOSYS if number == 435 else errno.EPERM
        steps += [(system_calls.EQUAL, 0, 1, number), (system_calls.RETURN, 0, 0, system_calls.ERRNO | error)]
    steps.append(system_calls.LET)
    code = b"".join(struct.pack("=HBBI", *one) for one in steps)
    program = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("@HP", len(steps), ctypes.addressof(program))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(22, 2, ctypes.c_char_p(header), 0, 0) == 0:
        return
    # Without CAP_SYS_ADMIN the kernel accepts a filter only from a process that cannot gain rights.
    libc.prctl(38, 1, 0, 0, 0)
    if libc.prctl(22, 2, ctypes.c_char_p(header), 0, 0):
        raise OSError(ctypes.get_errno(), "the container's own filter")


if __name__ == "__main__":
    main()
