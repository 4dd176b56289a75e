"""The event loop of our servers: uvloop where it is available, else Python's own.

`timeout` stands in place of `asyncio.wait_for`, which before Python 3.12 loses a cancellation that comes at the moment
at which what it waits for has ended (https://github.com/python/cpython/issues/86296): the task then goes on for ever.
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
