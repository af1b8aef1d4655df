"""The extras of the package: who needs which, and the sentence where one is not installed."""

import importlib.util
import sys

_TENSORFLOW = ("tensorflow", "tensorflow_text", "tensorflow_serving", "keras")
_SERVE = (*_TENSORFLOW, "fastapi", "grpc_health", "uvicorn")
_TRAIN = ("apache_beam", "jinja2", "nltk", "orbit", "pycocoevalcap", "tensorboard")
MODULES = {"serve": _SERVE, "train": _SERVE + _TRAIN}
PROGRAMS = {
    "export": "train",
    "mrnn_tf.metrics": "train",
    "serving.explorer": "serve",
    "serving.local": "serve",
    "trainer": "train",
}


def sentence(name: str, module: str, extra: str) -> str:
    return f'{name} needs {module}: pip install "mrnn_tf[{extra}]"'


def check_program() -> None:
    """Ends a program (`python -m name`) whose extra is not installed, before it starts."""
    if sys.argv[:1] != ["-m"]:  # so Python sets it until it has found the program
        return
    program = sys.orig_argv[-len(sys.argv)]
    for name, extra in PROGRAMS.items():
        if f"{program}.".startswith(f"{name}."):
            for module in MODULES[extra]:
                if importlib.util.find_spec(module) is None:
                    sys.exit(f"error: {sentence(program, module, extra)}")
