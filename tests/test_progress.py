"""Progress with the time left: lines in a log, and counts of workers that are other processes."""

import logging
import re

from mrnn_tf import batch, progress


def test_a_log_gets_lines_with_the_time_left(monkeypatch, caplog):
    monkeypatch.setattr(progress, "_SECONDS", 0.0)
    with caplog.at_level(logging.INFO):
        assert list(progress.Progress(range(3), "captions", unit=" batches")) == [0, 1, 2]
    lines = [record.getMessage() for record in caplog.records]
    assert re.fullmatch(r"captions: 1 of 3 batches, 00:00 passed, 00:00 left", lines[-3]), lines
    assert lines[-1].startswith("captions: 3 of 3 batches")


def test_what_is_quick_writes_no_line(caplog):
    with caplog.at_level(logging.INFO), progress.Progress(total=5, unit=" steps") as bar:
        bar.update(5)
        bar.say("step 5: well")
    assert [record.getMessage() for record in caplog.records] == ["step 5: well"]


def test_counts_of_workers_add_up(monkeypatch, tmp_path):
    monkeypatch.setattr(batch, "_SECONDS", -1.0)  # every count is written
    count = batch.counted(str(tmp_path))
    assert count() == 0
    with batch.Counter(f"{tmp_path}/one") as one, batch.Counter(f"{tmp_path}/two") as two:
        one.add(32)
        two.add(5)
        one.add(10)
        assert count() == 47
    (tmp_path / "half.count").write_text("[3")  # a store that is writing it
    assert count() == 47
    two.add(1)  # a runner that does an item twice does not change a final count
    assert count() == 47
