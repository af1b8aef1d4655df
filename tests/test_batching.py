"""Merging of concurrent requests, on a real SavedModel."""

import asyncio

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
        lambda x: {"y": signature.function(x=x)["y"][:1]},
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


def test_rows_must_agree(toy):
    signature = toy.signatures["greet"]
    text, scale = np.array([b"a", b"b"], object), np.ones((1, 2), np.float32)
    with pytest.raises(Refused, match="equally many rows, got `text` 2, `scale` 1"):
        signature.rows({"text": text, "scale": scale})
    with pytest.raises(Refused, match="`text` has no rows"):
        signature.rows({"text": text[:0], "scale": scale[:0]})
