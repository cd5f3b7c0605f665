import asyncio

import pytest

from shared.runtime.batching import MicroBatcher, boarding


def test_the_longest_waiting_board_first_each_once() -> None:
    assert boarding(["a", "b", "a", "c"], 2) == ["a", "b"]
    assert boarding([], 4) == []


class Recorder:
    """Doubles numbers, remembers its batches, and holds them until told."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def run(self, batch: list[int]) -> list[int]:
        self.batches.append(batch)
        await self.gate.wait()
        if 13 in batch:
            raise ValueError("13")
        return [2 * item for item in batch]


async def test_what_arrives_while_a_batch_runs_rides_together() -> None:
    recorder = Recorder()
    batcher = MicroBatcher(recorder.run, seats=8)
    recorder.gate.clear()
    first = asyncio.create_task(batcher.submit([1]))
    await asyncio.sleep(0.01)
    others = [asyncio.create_task(batcher.submit([item])) for item in (2, 3, 2)]
    await asyncio.sleep(0.01)
    recorder.gate.set()
    assert [await task for task in (first, *others)] == [[2], [4], [6], [4]]
    assert recorder.batches == [[1], [2, 3]]


async def test_no_batch_has_more_than_its_seats() -> None:
    recorder = Recorder()
    batcher = MicroBatcher(recorder.run, seats=2)
    assert await batcher.submit([1, 2, 3, 4, 5]) == [2, 4, 6, 8, 10]
    assert recorder.batches == [[1, 2], [3, 4], [5]]


async def test_a_short_wait_gathers_company() -> None:
    recorder = Recorder()
    batcher = MicroBatcher(recorder.run, seats=8, wait_s=0.02)
    tasks = []
    for item in (1, 2, 3):
        tasks.append(asyncio.create_task(batcher.submit([item])))
        await asyncio.sleep(0)
    assert await asyncio.gather(*tasks) == [[2], [4], [6]]
    assert recorder.batches == [[1, 2, 3]]


async def test_a_failing_batch_fails_its_riders_and_no_later_one() -> None:
    batcher = MicroBatcher(Recorder().run, seats=8)
    with pytest.raises(ValueError, match="13"):
        await batcher.submit([13])
    assert await batcher.submit([1]) == [2]


async def test_who_gives_up_takes_nothing_from_who_waits_for_the_same() -> None:
    recorder = Recorder()
    batcher = MicroBatcher(recorder.run, seats=8)
    recorder.gate.clear()
    impatient, patient = (asyncio.create_task(batcher.submit([5])) for _ in range(2))
    await asyncio.sleep(0.01)
    impatient.cancel()
    await asyncio.sleep(0)
    recorder.gate.set()
    assert await patient == [10]
    await batcher.close()


async def test_what_nobody_waits_for_any_more_is_not_computed() -> None:
    """A flood of calls that timed out kept a model busy for as long as it had lasted."""
    recorder = Recorder()
    batcher = MicroBatcher(recorder.run, seats=8)
    recorder.gate.clear()
    first = asyncio.create_task(batcher.submit([1]))
    await asyncio.sleep(0.01)
    *gone, last = (asyncio.create_task(batcher.submit([item])) for item in (2, 3, 3, 4))
    await asyncio.sleep(0.01)
    for task in gone:
        task.cancel()
    await asyncio.gather(*gone, return_exceptions=True)
    again = asyncio.create_task(batcher.submit([3]))
    await asyncio.sleep(0)
    recorder.gate.set()
    assert [await task for task in (first, last, again)] == [[2], [8], [6]]
    assert recorder.batches == [[1], [4, 3]]


async def test_nothing_asked_nothing_run() -> None:
    recorder = Recorder()
    assert await MicroBatcher(recorder.run, seats=8).submit([]) == []
    assert recorder.batches == []
