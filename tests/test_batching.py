"""Merging of concurrent requests, on a real SavedModel."""

import asyncio
import dataclasses
import os
import threading
import types

import grpc
import numpy as np
import pytest
import served

from serving.batching import Batcher, merged
from serving.served_version import Refused, ServedVersion


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    path = served.write(tmp_path_factory.mktemp("models"), 1)
    return ServedVersion("toy", 1, str(path))


def row(value, rows=1):
    return {"x": np.full((rows, 4), value, np.float32)}


def calls(toy):
    return toy.signatures["count"]({"x": np.zeros(1, np.int32)})["calls"][0]


def run_all(toy, requests, signature="double", **options):
    """Sends requests at once; returns answers or refusals, and the number of graph calls."""
    settings = {"max_rows": 64, "wait_seconds": 0.2, "max_queued": 1000} | options
    before = calls(toy)

    async def main():
        batcher = Batcher(**settings)
        runs = [batcher.run(toy.signatures[signature], each) for each in requests]
        return await asyncio.gather(*runs, return_exceptions=True)

    answers = asyncio.run(main())
    return answers, calls(toy) - before


def values(answers):
    return [answer["y"][:, 0].tolist() for answer in answers]


def test_concurrent_requests_become_few_batches(toy):
    answers, count = run_all(toy, [row(i) for i in range(32)])
    assert values(answers) == [[2 * i + 1] for i in range(32)]
    assert count <= 4


def test_a_batch_has_a_largest_size_and_larger_requests_run_alone(toy):
    answers, count = run_all(toy, [row(i, rows=3) for i in range(8)], max_rows=6)
    assert values(answers) == [[2 * i + 1] * 3 for i in range(8)]
    assert count >= 4
    answers, count = run_all(toy, [row(i, rows=9) for i in range(3)], max_rows=6)
    assert values(answers) == [[2 * i + 1] * 9 for i in range(3)]
    assert count == 3


def test_merging_can_be_turned_off(toy):
    _, count = run_all(toy, [row(i) for i in range(8)], max_rows=0)
    assert count == 8


def test_one_bad_request_fails_alone(toy):
    bad = served.MARK + 1
    answers, _ = run_all(toy, [row(bad if i == 5 else i) for i in range(12)])
    refused = answers.pop(5)
    assert isinstance(refused, Refused)
    assert refused.code == grpc.StatusCode.INVALID_ARGUMENT
    assert "marked value" in str(refused)
    assert "Op:" not in str(refused) and "node" not in str(refused)
    assert values(answers) == [[2 * i + 1] for i in range(12) if i != 5]


def test_inputs_of_other_shapes_are_not_merged(toy):
    wide = [{"x": np.ones((1, 1 + i % 2), np.int64)} for i in range(6)]
    answers, count = run_all(toy, wide, "sums")
    assert [answer["sums"].tolist() for answer in answers] == [[1], [2]] * 3
    assert 2 <= count <= 4


def test_signatures_without_rows_are_not_merged(toy):
    answers, _ = run_all(toy, [{"x": np.ones((2, i), np.int64)} for i in range(6)], "total")
    assert [answer["total"] for answer in answers] == [0, 2, 4, 6, 8, 10]


def test_a_batch_whose_outputs_have_other_rows_is_run_one_by_one(toy):
    signature = toy.signatures["double"]
    halved = type(signature)(
        "toy", "halved", signature.inputs, signature.outputs, True,
        lambda inputs: {"y": signature.function(inputs)["y"][:1]},
    )  # fmt: skip
    first, second = merged(halved, [row(1), row(2)])
    assert values([first, second]) == [[3], [5]]


def test_when_too_many_wait_the_next_is_refused(toy):
    answers, _ = run_all(toy, [row(i) for i in range(8)], max_queued=3)
    refused = [answer for answer in answers if isinstance(answer, Refused)]
    assert {answer.code for answer in refused} == {grpc.StatusCode.UNAVAILABLE}
    assert values([answer for answer in answers if answer not in refused]) == [[1], [3], [5]]


def test_who_gives_up_leaves_the_queue(toy):
    async def main():
        batcher = Batcher(max_rows=64, wait_seconds=0.05, max_queued=4)
        signature = toy.signatures["double"]
        for _ in range(3):
            runs = [asyncio.create_task(batcher.run(signature, row(i))) for i in range(4)]
            await asyncio.sleep(0)
            for run in runs[1:]:
                run.cancel()
            answers = await asyncio.gather(*runs, return_exceptions=True)
            assert [type(each) for each in answers[1:]] == [asyncio.CancelledError] * 3
            assert values(answers[:1]) == [[1]]
            await asyncio.sleep(0.1)
        assert not batcher.running

    asyncio.run(main())


@pytest.fixture
def stuck(toy):
    """A signature that runs until its `end` is set, and notes what it was asked."""
    double, end, asked = toy.signatures["double"], threading.Event(), []

    def function(inputs):
        asked.append(inputs["x"][0, 0])
        assert end.wait(60)
        return double.function(inputs)

    signature = dataclasses.replace(double, name="stuck", function=function)
    yield types.SimpleNamespace(signature=signature, end=end, asked=asked)
    end.set()


def test_a_slow_signature_does_not_keep_others_from_running(toy, stuck):
    async def main():
        batcher = Batcher(max_rows=0, wait_seconds=0, max_queued=100)
        slow = [asyncio.create_task(batcher.run(stuck.signature, row(i))) for i in range(9)]
        await asyncio.sleep(0.2)
        assert batcher.running == len(stuck.asked) == os.cpu_count()
        for i in range(3):
            async with asyncio.timeout(30):
                assert values([await batcher.run(toy.signatures["double"], row(i))]) == [
                    [2 * i + 1]
                ]
        stuck.end.set()
        assert values(await asyncio.gather(*slow)) == [[2 * i + 1] for i in range(9)]

    asyncio.run(main())


def test_abandoned_work_counts_against_its_own_signature_only(toy, stuck):
    other_end = threading.Event()
    other = dataclasses.replace(
        toy.signatures["double"],
        name="other",
        function=lambda inputs: other_end.wait(60) and toy.signatures["double"].function(inputs),
    )
    cores = os.cpu_count()

    async def main():
        batcher = Batcher(max_rows=0, wait_seconds=0, max_queued=100)
        slow = [asyncio.create_task(batcher.run(stuck.signature, row(i))) for i in range(cores)]
        await asyncio.sleep(0.2)
        for each in slow:
            each.cancel()
        await asyncio.sleep(0.2)
        assert batcher.running == cores  # nothing can interrupt them
        waits = asyncio.create_task(batcher.run(stuck.signature, row(99)))
        others = [asyncio.create_task(batcher.run(other, row(i))) for i in range(cores + 1)]
        await asyncio.sleep(0.2)
        assert batcher.running == 2 * cores
        other_end.set()
        assert values(await asyncio.gather(*others)) == [[2 * i + 1] for i in range(cores + 1)]
        assert 99 not in stuck.asked
        stuck.end.set()
        assert values([await waits]) == [[199]]

    asyncio.run(main())


def test_a_full_queue_is_that_of_one_signature(toy, stuck):
    async def main():
        batcher = Batcher(max_rows=0, wait_seconds=0, max_queued=3)
        slow = [asyncio.create_task(batcher.run(stuck.signature, row(0))) for _ in range(9)]
        await asyncio.sleep(0.2)
        assert values([await batcher.run(toy.signatures["double"], row(1))]) == [[3]]
        stuck.end.set()
        answers = await asyncio.gather(*slow, return_exceptions=True)
        assert sum(isinstance(answer, Refused) for answer in answers) == 9 - 3

    asyncio.run(main())


def test_who_has_waited_too_long_is_not_run(stuck):
    async def main():
        batcher = Batcher(max_rows=0, wait_seconds=0, max_queued=100)
        running = [asyncio.create_task(batcher.run(stuck.signature, row(0))) for _ in range(9)]
        await asyncio.sleep(0.1)
        late = asyncio.create_task(batcher.run(stuck.signature, row(7), seconds=0.1))
        await asyncio.sleep(0.3)
        stuck.end.set()
        await asyncio.gather(*running)
        late.cancel()
        assert 7 not in stuck.asked

    asyncio.run(main())


def test_rows_must_agree(toy):
    signature = toy.signatures["greet"]
    text, scale = np.array([b"a", b"b"], object), np.ones((1, 2), np.float32)
    with pytest.raises(Refused, match="equally many rows, got `text` 2, `scale` 1"):
        signature.rows({"text": text, "scale": scale})
    with pytest.raises(Refused, match="`text` has no rows"):
        signature.rows({"text": text[:0], "scale": scale[:0]})
