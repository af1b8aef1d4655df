"""What REST does beside the event loop, and what it does not do at all."""

import asyncio
import threading

import pytest

from serving import rest_api
from serving.rest_api import Threads, Work
from serving.served_version import Refused


def test_large_bodies_are_parsed_beside_the_event_loop():
    async def main():
        threads, here = Threads(), threading.get_ident()
        assert await threads.run(Work(100, 100), threading.get_ident) == here
        photo = await threads.run(Work(10**7, 10), threading.get_ident)
        numbers = await threads.run(Work(10**5, 10**6), threading.get_ident)
        assert len({here, photo, numbers}) == 3

    asyncio.run(main())


@pytest.mark.parametrize("part", [b"1,", b'"",', b"[],", b"{},", b"["])
def test_a_body_of_too_many_values_is_not_parsed(part):
    count = (1 << 20) // (1 + (len(part) == 3 and part != b'"",')) - 10
    assert rest_api.values(b"[" + count * part + b"1]") <= 1 << 20
    with pytest.raises(Refused, match="more than 1048576 values"):
        rest_api.values(b"[" + (count + 20) * part + b"1]")
