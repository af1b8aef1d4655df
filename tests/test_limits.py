"""Room for uploads, on an event loop without a server."""

import asyncio
import time

import grpc
import numpy as np
import pytest

from mrnn_tf.errors import UserError
from serving.limits import Slow, Uploads, check_inputs
from serving.options import Limits
from serving.served_version import Refused


def run(main, *arguments, **named):
    async def made():
        return await main(Uploads(*arguments, **named))

    return asyncio.run(made())


async def upload(uploads, size, seconds=0.0, received=1, answered=None):
    """Sends a request that takes `seconds` to arrive."""

    async def content():
        await asyncio.sleep(seconds)
        return bytes(received)

    async with uploads.room(size) as room:
        length = len(await room.read(content()))
        if answered:
            await answered.wait()
        return length


def test_room_is_what_a_request_may_need_and_then_what_it_has():
    async def main(uploads):
        answered = asyncio.Event()
        first = asyncio.create_task(upload(uploads, 10, answered=answered))
        await asyncio.sleep(0.05)
        second = await upload(uploads, 9, received=9)  # 1 byte is held
        waiting = asyncio.create_task(upload(uploads, 10, received=10))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        answered.set()
        return await first, second, await waiting

    assert run(main, 10, 5, 3) == (1, 9, 10)


def test_an_unfinished_upload_gives_way_when_others_wait():
    async def main(uploads):
        slow = [asyncio.create_task(upload(uploads, 5, 60)) for _ in range(2)]
        await asyncio.sleep(0)
        began = asyncio.get_running_loop().time()
        assert await upload(uploads, 5) == 1
        assert asyncio.get_running_loop().time() - began > 0.2
        assert [each.done() for each in slow] == [True, False]
        with pytest.raises(Slow, match="did not arrive in time"):
            await slow[0]
        slow[1].cancel()

    run(main, 10, 50, 3)


def test_a_small_upload_that_began_first_does_not_give_way():
    async def main(uploads):
        small = asyncio.create_task(upload(uploads, 1, 0.8))
        await asyncio.sleep(0)
        large = asyncio.create_task(upload(uploads, 9, 60))
        await asyncio.sleep(0)
        assert await upload(uploads, 5) == 1
        with pytest.raises(Slow):
            await large
        return await small

    assert run(main, 10, 50, 3) == 1


def test_where_a_connection_is_wanted_the_first_upload_gives_way_however_small():
    async def main(uploads):
        small, large = (asyncio.create_task(upload(uploads, size, 0.5)) for size in (1, 9))
        await asyncio.sleep(0)
        assert uploads.evict()
        with pytest.raises(Slow):
            await small
        return await large

    assert run(main, 10, 50, 3) == 1


def test_nothing_gives_way_where_there_is_room():
    async def main(uploads):
        slow = asyncio.create_task(upload(uploads, 5, 1.5))
        await asyncio.sleep(1.3)
        assert await upload(uploads, 5) == 1
        return await slow

    assert run(main, 10, 50, 3) == 1


def test_a_blocked_event_loop_makes_no_upload_late():
    async def main(uploads):
        reading = asyncio.create_task(upload(uploads, 10, 0.3))
        await asyncio.sleep(0)
        waiting = asyncio.create_task(upload(uploads, 10))
        await asyncio.sleep(0.01)
        time.sleep(1.5)
        return await asyncio.gather(reading, waiting)

    assert run(main, 10, 50, 3) == [1, 1]


def test_an_upload_has_its_time_and_few_wait():
    async def main(uploads):
        with pytest.raises(Slow):
            await upload(uploads, 1, 60)
        kept = asyncio.create_task(upload(uploads, 10, received=10, answered=asyncio.Event()))
        await asyncio.sleep(0.05)
        waiting = [asyncio.create_task(upload(uploads, 1)) for _ in range(3)]
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        assert {each.code for each in answers} == {grpc.StatusCode.UNAVAILABLE}
        kept.cancel()

    run(main, 10, 0.2, 2)


def test_a_body_of_unknown_size_takes_room_as_it_grows():
    async def main(uploads):
        async def parts(room, sizes):
            for size in sizes:
                await room.grow(size)
            return bytes(sum(sizes))

        async with uploads.room() as room, uploads.room() as other:
            assert await upload(uploads, 10) == 1
            assert len(await room.read(parts(room, [3, 3]))) == 6
            with pytest.raises(Refused, match="no room"):
                await other.grow(5)
            assert len(await other.read(parts(other, [3, 1]))) == 4
        assert await upload(uploads, 10) == 1

    run(main, 10, 0.3, 3)


def test_who_came_first_goes_first():
    async def main(uploads):
        order, answered = [], asyncio.Event()

        async def waits(number):
            await upload(uploads, 10)
            order.append(number)

        first = asyncio.create_task(upload(uploads, 10, received=10, answered=answered))
        await asyncio.sleep(0)
        others = []
        for number in range(3):
            others.append(asyncio.create_task(waits(number)))
            await asyncio.sleep(0)
        answered.set()
        await asyncio.gather(first, *others)
        assert order == [0, 1, 2]

    run(main, 10, 5, 3)


def test_rows_and_texts():
    limits = Limits(max_rows=2, max_text_bytes=3)
    fits = {"text": np.array([b"abc", b""], object), "x": np.ones((2, 9))}
    check_inputs(limits, fits | {"image_bytes": np.array([b"abcd"], object), "n": np.ones(())})
    with pytest.raises(Refused, match="`x` has 3 rows, 2 are allowed"):
        check_inputs(limits, {"x": np.ones((3, 1))})
    with pytest.raises(Refused, match="`text` has a text of 4 bytes, 3 are allowed"):
        check_inputs(limits, {"text": np.array([b"", b"abcd"], object)})


def test_limits_that_contradict_each_other():
    with pytest.raises(UserError, match="`max_inflight_bytes` must be `max_message_bytes` or more"):
        Limits(max_message_bytes=2, max_inflight_bytes=1)
