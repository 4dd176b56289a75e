"""Tasks that continue within the waking call."""

import asyncio

import pytest

from serve.gateway.http.eager import EagerTask, Signal


class Recorder:
    """A coroutine that records events."""

    def __init__(self):
        self.said = []
        self.signal = Signal()

    async def wait(self, times=1):
        try:
            for number in range(times):
                await self.signal
                self.said.append(number)
        except asyncio.CancelledError:
            self.said.append("cancelled")
            raise
        finally:
            self.said.append("end")


def test_task_runs_at_once_and_continues_within_the_call():
    story = Recorder()
    task = EagerTask(story.wait(2))
    assert story.said == [] and not task.is_done
    story.signal.set()
    assert story.said == [0]
    story.signal.set()
    assert story.said == [0, 1, "end"] and task.is_done
    story.signal.set()  # No task waits any more.
    task.cancel()
    assert story.said == [0, 1, "end"]


def test_task_is_cancelled_within_the_call_and_once():
    story = Recorder()
    task = EagerTask(story.wait())
    task.cancel()
    assert story.said == ["cancelled", "end"] and task.is_done
    story.signal.set()
    assert story.said == ["cancelled", "end"]


def test_running_task_receives_its_cancellation_at_the_next_wait():
    story, said = Recorder(), []

    async def main():
        await story.signal
        task.cancel()
        said.append("runs on")
        try:
            await story.signal
        except asyncio.CancelledError:
            said.append(task.uncancel())
        await story.signal
        said.append("went on")

    task = EagerTask(main())
    story.signal.set()
    assert said == ["runs on", 0] and not task.is_done
    story.signal.set()
    assert said == ["runs on", 0, "went on"] and task.is_done


def test_two_cancellations_are_distinguished():
    """A timeout and a disconnect at the same moment: only the timeout may be suppressed."""

    async def main():
        future = asyncio.get_running_loop().create_future()
        left = []

        async def work():
            try:
                await future
            except asyncio.CancelledError:
                left.append(task.uncancel())

        task = EagerTask(work())
        task.cancel()
        task.cancel()
        await asyncio.sleep(0)
        assert left == [1] and task.is_done

    asyncio.run(main())


@pytest.mark.parametrize("way", ["result", "error", "cancel", "cancel when done"])
def test_task_waits_for_asyncio_futures_too(way):
    async def main():
        future = asyncio.get_running_loop().create_future()
        said = []

        async def work():
            try:
                said.append(await future)
            except (ValueError, asyncio.CancelledError) as error:
                said.append(type(error))

        task = EagerTask(work())
        if way == "error":
            future.set_exception(ValueError())
        elif way != "cancel":
            future.set_result(7)
        if way.startswith("cancel"):
            task.cancel()
        await asyncio.sleep(0)
        wanted = {"result": 7, "error": ValueError}.get(way, asyncio.CancelledError)
        assert said == [wanted] and task.is_done

    asyncio.run(main())


def test_exception_is_reported_to_the_loop_and_ends_the_task():
    async def main():
        told = []
        asyncio.get_running_loop().set_exception_handler(lambda _, about: told.append(about["exception"]))
        story = Recorder()

        async def work():
            await story.signal
            raise KeyError("mine")

        task = EagerTask(work())
        story.signal.set()
        assert task.is_done and [repr(one) for one in told] == ["KeyError('mine')"]

    asyncio.run(main())
