"""The peak memory of the test process, kept below a bound."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from infra.transport.protocol import LIMIT_BYTES

MIB = 1 << 20
GROWTH_BYTES = 8 * LIMIT_BYTES  # pieces, joined once, and as text; a sparse file of 3 GB is 24 times as large


def status(field: str) -> int:
    """Return a size in /proc/self/status, in bytes."""
    line = next(one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


@contextmanager
def bounded(growth_bytes: int = GROWTH_BYTES) -> Iterator[None]:
    """Fail if the peak memory of this process grows by more; stop the process long before the machine suffers."""
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
