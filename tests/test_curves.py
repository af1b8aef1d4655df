import tensorflow as tf

from trainer.report import curves


def write(directory: str, scalars: dict[str, dict[int, float]], suffix: str) -> None:
    """An event file as TensorBoard's writer makes it; files sort by their suffixes."""
    writer = tf.summary.create_file_writer(directory, filename_suffix=suffix)
    with writer.as_default():
        for tag, points in scalars.items():
            for step, value in points.items():
                tf.summary.scalar(tag, value, step)
        tf.summary.text("captions", "| image | generated |", 1)
    writer.close()


def rename(directory: str, order: str) -> str:
    """Gives the newest file a name that sorts by `order`, as the time in real names does."""
    [path] = tf.io.gfile.glob(f"{directory}/events.out.tfevents.*.new")
    target = f"{directory}/events.out.tfevents.{order}"
    tf.io.gfile.rename(path, target)
    return target


def test_the_curves_of_a_run_by_name():
    directory = "ram://curves"
    train = {"perplexity": {10: 50.0, 20: 12.5}, "learning_rate": {10: 0.5, 20: 0.25}}
    write(f"{directory}/train", train | {"cost": {10: 7.0}}, ".new")
    write(f"{directory}/val", {"perplexity": {20: 15.0}, "best_perplexity": {20: 9.0}}, ".new")
    assert curves.read(directory) == {
        "train perplexity": [(10, 50.0), (20, 12.5)],
        "validation perplexity": [(20, 15.0)],
        "learning rate": [(10, 0.5), (20, 0.25)],
    }


def test_what_was_not_written_is_left_out(tmp_path):
    assert curves.read(str(tmp_path / "nowhere")) == {}
    write(str(tmp_path / "train"), {"perplexity": {5: 2.0}}, ".new")
    assert curves.read(str(tmp_path)) == {"train perplexity": [(5, 2.0)]}


def test_the_later_file_of_a_resumed_run_holds(tmp_path):
    directory = str(tmp_path)
    write(directory, {"perplexity": {10: 8.0, 20: 6.0, 30: 5.0}}, ".new")
    rename(directory, "2")
    write(directory, {"perplexity": {30: 4.5, 40: 4.0}}, ".new")
    rename(directory, "3")
    assert curves.scalar(directory, "perplexity") == [(10, 8.0), (20, 6.0), (30, 4.5), (40, 4.0)]


def test_half_a_record_at_the_end_of_a_killed_run_is_passed_over(tmp_path):
    directory = str(tmp_path)
    write(directory, {"perplexity": {10: 8.0, 20: 6.0}}, ".new")
    path = rename(directory, "2")
    with open(path, "r+b") as file:
        file.truncate(file.seek(0, 2) - 5)  # the last record is the text
    write(directory, {"perplexity": {30: 5.0}}, ".new")
    rename(directory, "3")
    assert curves.scalar(directory, "perplexity") == [(10, 8.0), (20, 6.0), (30, 5.0)]
