"""Event loop of the servers: uvloop if available, else asyncio's own.

`timeout` replaces `asyncio.wait_for`, which before Python 3.12 loses a cancellation that arrives at the moment when the
awaited operation ends (https://github.com/python/cpython/issues/86296): the task would then run forever.
"""

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any

if sys.version_info >= (3, 11):
    from asyncio import timeout as timeout
else:
    from async_timeout import timeout as timeout


def run(main: Coroutine[Any, Any, None]) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)
