import asyncio
import contextlib

import pytest

from serve.loops import timeout


@pytest.mark.parametrize("steps", range(6))
def test_task_cancelled_at_the_completion_of_its_wait_ends(steps):
    async def main():
        changed = asyncio.Event()

        async def follow():
            while True:
                changed.clear()
                with contextlib.suppress(asyncio.TimeoutError):
                    async with timeout(60.0):
                        await changed.wait()

        task = asyncio.create_task(follow())
        await asyncio.sleep(0)
        changed.set()
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=5.0)
        assert done and task.cancelled()

    asyncio.run(main())
