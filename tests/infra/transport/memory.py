"""The peak of the memory of the process that runs the tests, held to a bound."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from infra.transport.protocol import LIMIT_BYTES

MIB = 1 << 20
GROWTH_BYTES = 8 * LIMIT_BYTES  # pieces, joined once, and as text; a hole of 3 GB is 24 times that


def status(field: str) -> int:
    """Return a size in /proc/self/status, in bytes."""
    line = next(one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


@contextmanager
def bounded(growth_bytes: int = GROWTH_BYTES) -> Iterator[None]:
    """Fail when the peak of this process's memory grows by more; stop it long before the machine suffers."""
    Path("/proc/self/clear_refs").write_text("5")
    before, (soft, hard) = status("VmRSS"), resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (status("VmSize") + 4 * growth_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    grown = status("VmHWM") - before
    print(f"grown by {grown / MIB:.0f} MiB")
    assert grown < growth_bytes
