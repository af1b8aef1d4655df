"""How every program begins and ends: flags to options, options to one function, one exit code.

    if __name__ == "__main__":  # before all other imports: --help needs no TensorFlow
        program.main("trainer.evaluate:evaluate", EvaluateOptions)

Every field of the options is a flag. The function is named, and imported when the flags are known
to be right: importing TensorFlow takes seconds, and options need none of it. A user's mistake ends
in one sentence, in which the argument that is at fault is named as the flag that it is; a bug ends
in a traceback.
"""

import contextlib
import dataclasses
import gc
import logging as python_logging
import os
import pathlib
import pkgutil
import re
import signal
import sys
from collections.abc import Callable, Iterator
from typing import NoReturn, TypeVar

from absl import app, flags, logging

from mrnn_tf import config
from mrnn_tf.errors import UserError
from mrnn_tf.escape import printable

Options = TypeVar("Options", bound=config.Config)

# TensorFlow's errors that are not the program's fault, but that of files, disks, other machines.
_ENVIRONMENT = (
    "NotFoundError",
    "PermissionDeniedError",
    "FailedPreconditionError",
    "ResourceExhaustedError",
    "DataLossError",
    "UnavailableError",
)
INTERRUPTED = 130  # the exit code after Ctrl-C
_NEW_OBJECTS = 50_000  # before garbage is collected: tracing makes many that stay
_UNUSED = "matplotlib", "sklearn"  # Keras imports them for plots and wrappers
_OWN = [
    pathlib.Path(__file__).parent.parent / name
    for name in ("mrnn_tf", "trainer", "export", "serving")
]
_DEFINE = {
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    bool: flags.DEFINE_bool,
    str: flags.DEFINE_string,
}
flags.disclaim_key_flags()  # --help lists the flags below the program that has them


def main(function: str, options: type[Options]) -> None:
    """Runs the function named "module:function" with the options that the flags give.

    Options with a field `beam_flags` take the flags that are not their own.
    """
    define_flags(options)
    has_beam = "beam_flags" in (each.name for each in dataclasses.fields(options))

    def called(arguments: list[str]) -> None:
        more = {"beam_flags": tuple(arguments)} if has_beam else {}
        given = from_flags(options, **more)
        with _quick_imports():
            imported = pkgutil.resolve_name(function)
        imported(given)

    run(called, pass_unknown_flags=has_beam)


@contextlib.contextmanager
def _quick_imports() -> Iterator[None]:
    """Halves what imports take: without Keras's optional packages, and without collections."""
    hidden = [name for name in _UNUSED if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # as if they were not installed
    gc.disable()  # modules are no garbage
    try:
        yield
    finally:
        gc.freeze()
        gc.set_threshold(_NEW_OBJECTS)
        gc.enable()
        for name in hidden:
            del sys.modules[name]


def define_flags(options: type[config.Config], default_of: str = "") -> None:
    """Makes a flag of every field; `default_of` says whose default it has where not its own."""
    for each in dataclasses.fields(options):
        if not each.metadata:
            continue
        kind, several, _ = config.item_type(each)
        text = each.metadata["help"]
        if each.default not in (None, "", (), config.REQUIRED):
            default = ",".join(map(str, each.default)) if several else repr(each.default)
            text += f"; default {default}{default_of}"
        if several:
            flags.DEFINE_list(each.name, None, text)
        elif each.metadata["choices"]:
            flags.DEFINE_enum(each.name, None, each.metadata["choices"], text)
        else:
            _DEFINE[kind](each.name, None, text)


def from_flags(options: type[Options], **more) -> Options:
    """The options that the flags give; `more` are fields that are no flags, or replace them."""
    given = given_flags(options)
    for each in dataclasses.fields(options):
        if each.metadata and each.default is config.REQUIRED and each.name not in given:
            raise UserError(f"`{each.name}` is required (--help shows an example).")
    return options(**(given | more))


def given_flags(options: type[config.Config]) -> dict:
    """The values of the flags that were given, by field."""
    given = {}
    for each in dataclasses.fields(options):
        if each.metadata and flags.FLAGS[each.name].present:
            kind, several, _ = config.item_type(each)
            value = flags.FLAGS[each.name].value
            try:
                given[each.name] = tuple(map(kind, value)) if several else value
            except ValueError:
                raise UserError(
                    f"`{each.name}` must be a list of {kind.__name__}; got {','.join(value)}."
                ) from None
    return given


def run(function: Callable[[list[str]], None], pass_unknown_flags: bool = False) -> None:
    """Runs `function` with the arguments that are not flags of the program.

    Foreign flags are among them with `pass_unknown_flags`, and are refused without.
    """

    def guarded(argv: list[str]) -> None:
        _log_plainly()
        if len(argv) > 1 and not pass_unknown_flags:
            raise app.UsageError(f"unexpected argument {argv[1]!r}")
        try:
            function(argv[1:])
        except (UserError, OSError, *_environment_errors()) as error:
            logging.debug("Where it happened:", exc_info=True)
            sys.exit(f"error: {sentence(error)}")

    def parse(argv: list[str]) -> list[str]:
        try:
            return flags.FLAGS(argv, known_only=pass_unknown_flags)
        except flags.Error as error:
            sys.exit(f"error: {error} (--help lists the flags)")

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _stop)  # Beam would make a traceback of KeyboardInterrupt
    try:
        app.run(guarded, flags_parser=parse)
    except KeyboardInterrupt:
        _stop()


def _stop(*_) -> NoReturn:
    """Ends at once, as a kill would: Python would wait for threads, however long they take."""
    print("stopped by Ctrl-C", file=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(INTERRUPTED)


def _environment_errors() -> list[type[Exception]]:
    tensorflow = sys.modules.get("tensorflow")  # where it is not imported, it has raised nothing
    return [getattr(tensorflow.errors, name) for name in _ENVIRONMENT] if tensorflow else []


def sentence(error: Exception) -> str:
    """An error as one sentence that names flags where the library named arguments."""
    text = getattr(error, "message", None) or str(error)  # TensorFlow's have a message
    text = printable(" ".join(text.split())) or type(error).__name__
    if full := re.search(r"(?:(\S+); )?No space left on device(?:: '([^']+)')?", text):
        # TensorFlow names the file before the reason, Python behind it.
        path = full[1] or full[2] or "a file"
        text = f"No space left on device for {path}: make room, then the same command goes on."

    def flag(name: re.Match) -> str:
        return f"--{name[1]}" if name[1] in flags.FLAGS else name[0]

    return re.sub(r"`(?:\w+\.)?(\w+)`", flag, text)


def log_devices(require_gpu: bool) -> None:
    """Says which devices are used; raises where a GPU is required and there is none."""
    import tensorflow as tf  # not above: --help needs none

    gpus = tf.config.list_physical_devices("GPU")
    if require_gpu and not gpus:
        raise UserError(
            "`require_gpu`: TensorFlow sees no GPU on this machine; install the extra `gpu` and a "
            "driver, or leave it out."
        )
    names = [tf.config.experimental.get_device_details(gpu).get("device_name", "") for gpu in gpus]
    logging.info("Devices: %s", ", ".join(names) if names else f"CPU ({os.cpu_count()} cores)")


def _log_plainly() -> None:
    """Date, level and message, and of other packages only what is a warning."""
    python_logging.getLogger("tensorflow").setLevel(python_logging.WARNING)
    handler = logging.get_absl_handler()
    line = "%(asctime)s %(levelname)s %(message)s"
    handler.setFormatter(python_logging.Formatter(line, "%Y-%m-%d %H:%M:%S"))
    handler.addFilter(
        lambda record: (
            record.levelno >= python_logging.WARNING
            or any(pathlib.Path(record.pathname).is_relative_to(folder) for folder in _OWN)
        )
    )
