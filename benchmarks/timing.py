"""The one stopwatch of the benchmarks."""

import math
import time
from collections.abc import Callable, Hashable, Mapping


def best_seconds(
    sides: Mapping[Hashable, Callable[[], object]],
    rounds: int,
    seconds: float = 0.0,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[Hashable, float]:
    """The seconds of a call of each side in its best round, after a call that does not count.

    The sides take turns; in a round a side is called until `seconds` have passed.
    """
    for call in sides.values():
        call()
    best = dict.fromkeys(sides, math.inf)
    for _ in range(rounds):
        for name, call in sides.items():
            calls, took = 0, 0.0
            began = clock()
            while not calls or took < seconds:
                call()
                calls, took = calls + 1, clock() - began
            best[name] = min(best[name], took / calls)
    return best
