"""How every program begins and ends: flags in, exit code 0 or one sentence and exit code 1."""

import logging as python_logging
import os
import pathlib
import sys
from collections.abc import Callable

import tensorflow as tf
from absl import app, flags, logging

_OWN = [
    pathlib.Path(__file__).parent.parent / name
    for name in ("mrnn_tf", "trainer", "export", "serving")
]


def run(main: Callable[[list[str]], None], pass_unknown_flags: bool = False) -> None:
    """Runs `main` with the arguments that are not flags of the program.

    Args:
        main: Callable. Raises `ValueError` or `OSError` with a sentence where the user is at fault.
        pass_unknown_flags: bool. Hands foreign flags to `main` instead of refusing them.
    """

    def guarded(argv: list[str]) -> None:
        _log_plainly()
        if len(argv) > 1 and not pass_unknown_flags:
            raise app.UsageError(f"unexpected argument {argv[1]!r}")
        try:
            main(argv[1:])
        except (ValueError, OSError, tf.errors.OpError) as error:
            logging.debug("Where it happened:", exc_info=True)
            print(f"error: {_sentence(error)}", file=sys.stderr)
            sys.exit(1)

    def parse(argv: list[str]) -> list[str]:
        return flags.FLAGS(argv, known_only=pass_unknown_flags)

    try:
        app.run(guarded, flags_parser=lambda argv: _parse_or_exit(parse, argv))
    except KeyboardInterrupt:
        sys.exit(130)


def log_devices(require_gpu: bool) -> None:
    """Says which devices are used; raises where a GPU is required and there is none."""
    gpus = tf.config.list_physical_devices("GPU")
    if require_gpu and not gpus:
        raise ValueError(
            "--require_gpu: TensorFlow sees no GPU on this machine; install the extra `gpu` and a "
            "driver, or leave the flag out."
        )
    names = [tf.config.experimental.get_device_details(gpu).get("device_name", "") for gpu in gpus]
    logging.info("Devices: %s", ", ".join(names) if names else f"CPU ({os.cpu_count()} cores)")


def _log_plainly() -> None:
    """Time and message, and of other packages only what is a warning."""
    tf.get_logger().setLevel(python_logging.WARNING)
    handler = logging.get_absl_handler()
    handler.setFormatter(python_logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    handler.addFilter(
        lambda record: (
            record.levelno >= python_logging.WARNING
            or any(pathlib.Path(record.pathname).is_relative_to(folder) for folder in _OWN)
        )
    )


def _parse_or_exit(parse, argv: list[str]) -> list[str]:
    try:
        return parse(argv)
    except flags.Error as error:
        print(f"error: {error} (--help lists the flags)", file=sys.stderr)
        sys.exit(1)


def _sentence(error: Exception) -> str:
    text = error.message if isinstance(error, tf.errors.OpError) else str(error)
    return " ".join(text.split()) or type(error).__name__
