"""The wheel and the source distribution, and the wheel in environments of its own."""

import email
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import served
import test_imports
import tiny
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import mrnn_tf
from mrnn_tf import extras

ROOT = Path(__file__).parent.parent
TOPS = test_imports.TOPS
TRAIN_PROGRAMS = (
    "trainer.prepare", "trainer.task", "trainer.evaluate", "trainer.rerank", "mrnn_tf.metrics",
    "trainer.ensemble", "trainer.paper", "export.task", "export.index", "export.captions",
    "export.pretrained",
)  # fmt: skip
SERVE_PROGRAMS = ("serving.local", "serving.explorer")
PROGRAMS = dict.fromkeys(TRAIN_PROGRAMS, "train") | dict.fromkeys(SERVE_PROGRAMS, "serve")
CLIENT = ("serving.client", "serving.commands", "mrnn_tf.config", "mrnn_tf.photos")
CLASSES = [f"mrnn_tf.{home}" for home in mrnn_tf._HOMES.values()]


def run(*command, cwd: Path, check: bool = True) -> subprocess.CompletedProcess:
    """Runs a command that does not see the clone."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def tracked():
    if not (ROOT / ".git").exists():
        pytest.skip("the files of the project are known in a clone only")
    names = run("git", "ls-files", cwd=ROOT).stdout.splitlines()
    return {name for name in names if (ROOT / name).exists()}


@pytest.fixture(scope="module")
def sdist(tracked, tmp_path_factory):
    """The unpacked source distribution."""
    folder = tmp_path_factory.mktemp("sdist")
    for name in tracked:
        (folder / "clone" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / "clone" / name)
    build = "from setuptools import build_meta; build_meta.build_sdist('..')"
    run(sys.executable, "-c", build, cwd=folder / "clone")
    [archive] = folder.glob("*.tar.gz")
    with tarfile.open(archive) as unpacked:
        unpacked.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory):
    """The wheel that is built from the source distribution."""
    folder = tmp_path_factory.mktemp("wheel")
    build = f"from setuptools import build_meta; build_meta.build_wheel({str(folder)!r})"
    run(sys.executable, "-c", build, cwd=sdist)
    [path] = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def metadata(wheel):
    with zipfile.ZipFile(wheel) as files:
        [name] = [name for name in files.namelist() if name.endswith(".dist-info/METADATA")]
        return email.message_from_bytes(files.read(name))


@pytest.fixture(scope="module")
def requirements(metadata):
    return [Requirement(text) for text in metadata.get_all("Requires-Dist")]


def required(requirements, extra: str) -> set[str]:
    """The names of what is installed with an extra."""
    return {
        requirement.name
        for requirement in requirements
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra})
    }


def test_the_source_distribution_is_whole(sdist, tracked):
    packed = {str(path.relative_to(sdist)) for path in sdist.rglob("*") if path.is_file()}
    made = {name for name in packed if ".egg-info/" in name} | {"PKG-INFO", "setup.cfg"}
    assert packed - made == tracked


def test_the_wheel_holds_the_packages_and_nothing_else(wheel, tracked):
    with zipfile.ZipFile(wheel) as files:
        packed = {name for name in files.namelist() if ".dist-info/" not in name}
        assert any(name.endswith("dist-info/licenses/LICENSE") for name in files.namelist())
    assert packed == {name for name in tracked if name.split("/")[0] in TOPS}
    assert {"mrnn_tf/py.typed", "serving/deploy/kustomization.yaml"} < packed
    assert "serving/explorer/static/index.html" in packed


def test_metadata(metadata):
    assert (metadata["Name"], metadata["Version"]) == ("mrnn_tf", mrnn_tf.__version__)
    assert metadata["License-Expression"] == "Apache-2.0"
    assert "https://arxiv.org/abs/1412.6632" in metadata["Project-URL"]
    assert set(metadata.get_all("Provides-Extra")) == {
        "client", "serve", "beam", "train", "lite", "hub", "heic", "milvus", "all", "gpu",
        "dataflow", "test", "benchmark",
    }  # fmt: skip
    named = re.findall(r":: (3\.\d+)", "\n".join(metadata.get_all("Classifier")))
    python = SpecifierSet(metadata["Requires-Python"])
    assert named == [f"3.{n}" for n in range(30) if f"3.{n}" in python]


def test_the_description_needs_no_other_file(metadata, sdist):
    text = metadata.get_payload()
    links = re.findall(r"\]\(([^)]*)\)", text)
    assert links and all(link.startswith("https://") for link in links)
    pictures = re.findall(r"^\*.*: `(.*)` of the source distribution\.\*$", text, re.MULTILINE)
    assert len(pictures) == 3 and all((sdist / name).exists() for name in pictures)


def pins(text: str) -> dict[str, str]:
    """The version of every package; one that depends on the platform is there all the same."""
    found = re.findall(r"^([\w.-]+)==([^\s;]+)", text, re.MULTILINE)
    return {canonicalize_name(name): version for name, version in found}


def test_the_pinned_versions_are_within_the_bounds(requirements):
    pinned = pins((ROOT / "constraints.txt").read_text())
    for requirement in requirements:
        assert any(each.operator in ("<", "==", "~=") for each in requirement.specifier), (
            f"{requirement} has no upper bound"
        )
        if requirement.name in pinned:
            assert pinned[requirement.name] in requirement.specifier, requirement


def test_what_is_installed_by_its_hash_is_all_that_is_required(requirements):
    """`make requirements` makes the file again."""
    text = (ROOT / "requirements.txt").read_text()
    hashed = pins(text)
    assert hashed.items() <= pins((ROOT / "constraints.txt").read_text()).items()
    for extra in ("client", "all", "test"):
        assert {canonicalize_name(name) for name in required(requirements, extra)} <= set(hashed)
    packages = re.split(r"^(?=\w)", text, flags=re.MULTILINE)[1:]
    assert len(packages) == len(hashed)
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}\b", package) for package in packages)


# Used where they are installed.
OPTIONAL = {"hypertune", "keras_hub", "milvus_lite", "pillow_heif", "pyarrow", "pymilvus"}


def third_party(modules) -> set[str]:
    """What the modules and all that they import take from other packages."""
    names, seen, others = list(modules), set(), set()
    while names:
        module = names.pop()
        for path in (ROOT / f"{module.replace('.', '/')}{end}" for end in (".py", "/__init__.py")):
            if path.exists() and path not in seen:
                seen.add(path)
                imported = test_imports.imported(path)
                names += [name for name in imported if name.split(".")[0] in TOPS]
                names += [name.rpartition(".")[0] for name in imported]
                others |= {name.split(".")[0] for name in imported} - {*TOPS, ""}
    return others - sys.stdlib_module_names


@pytest.mark.parametrize(
    ("modules", "extra"),
    [
        (CLIENT, "client"),
        (("serving.local", "serving.explorer.server", *CLASSES), "serve"),
        (TRAIN_PROGRAMS, "train"),
    ],
    ids=["client", "serve", "train"],
)
def test_what_is_imported_is_required(modules, extra, requirements):
    names = {name.lower().replace("_", "-") for name in required(requirements, extra)}
    homes = importlib.metadata.packages_distributions()
    used = third_party([*modules, "mrnn_tf.metrics.__main__"] if extra == "train" else modules)
    used -= OPTIONAL
    for module in used:
        brought = {name.lower().replace("_", "-") for name in homes[module]}
        assert brought & names, f"{module} is not in the requirements of {extra}"
    base = (third_party(CLIENT) - OPTIONAL) | {"starlette", "h11"}  # with fastapi, uvicorn
    assert used - base <= set(extras.MODULES.get(extra, ()))


def test_a_folder_of_the_same_name_does_not_hide_the_package(tmp_path):
    """As in the folder above a clone."""
    (tmp_path / "mrnn_tf").mkdir()
    code = "import mrnn_tf; print(mrnn_tf.__version__)"
    assert run(sys.executable, "-c", code, cwd=tmp_path).stdout.strip() == mrnn_tf.__version__


def environment(folder: Path, *pip: object) -> Path:
    """The interpreter of a new environment, in which pip has installed something."""
    run(
        sys.executable, "-m", "venv", *([] if pip else ["--without-pip"]), folder, cwd=folder.parent
    )
    if pip:
        run(folder / "bin" / "pip", "install", "--quiet", *pip, cwd=folder)
    return folder / "bin" / "python"


def packages(python: Path) -> Path:
    [folder] = python.parent.parent.glob("lib/python*/site-packages")
    return folder


@pytest.fixture(scope="module")
def bare(wheel, tmp_path_factory):
    """An environment with the package and nothing else."""
    python = environment(tmp_path_factory.mktemp("bare") / "venv")
    with zipfile.ZipFile(wheel) as files:
        files.extractall(packages(python))
    return python


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_names_the_extra_that_is_missing(program, bare, tmp_path):
    done = run(bare, "-m", program, "--help", cwd=tmp_path, check=False)
    assert done.returncode == 1 and not done.stdout
    assert re.fullmatch(
        rf"error: {program} needs tensorflow: "
        rf'pip install "mrnn_tf\[{PROGRAMS[program]}\]"\n',
        done.stderr,
    )


def test_a_class_names_the_extra_that_is_missing(bare, tmp_path):
    code = "import mrnn_tf; print(mrnn_tf.UserError.__name__); mrnn_tf.Captioner"
    done = run(bare, "-c", code, cwd=tmp_path, check=False)
    assert done.stdout == "UserError\n"
    sentence = r"ImportError: mrnn_tf\.Captioner needs \w+: pip install \"mrnn_tf\[serve\]\""
    assert re.fullmatch(sentence, done.stderr.splitlines()[-1])


# The wheel installed by pip, outside the clone


@pytest.fixture(scope="module")
def client_only(wheel, tmp_path_factory):
    """An environment with what the package requires, and no extra."""
    constraints = ROOT / "constraints.txt"
    folder = tmp_path_factory.mktemp("client") / "venv"
    return environment(folder, "--constraint", constraints, f"{wheel}[client]")


@pytest.fixture(scope="module")
def with_all(wheel, tmp_path_factory):
    """An environment with the wheel; other packages are those of this one, its clone not."""
    python = environment(tmp_path_factory.mktemp("all") / "venv", "--no-deps", wheel)
    # A path in a .pth file is searched, but its own .pth files are not read.
    (packages(python) / "others.pth").write_text(str(Path(pytest.__file__).parent.parent))
    return python


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["client_only", "with_all"])
def test_the_client_asks_a_server(kind, models, tmp_path, request):
    python = request.getfixturevalue(kind)
    find = "import importlib.util, serving; print(serving.__file__); " + (
        "print(importlib.util.find_spec('tensorflow') is not None)"
    )
    path, has_tensorflow = run(python, "-c", find, cwd=tmp_path).stdout.split()
    assert Path(path).is_relative_to(packages(python))
    assert has_tensorflow == str(kind == "with_all")
    photo = tmp_path / "photo.png"
    photo.write_bytes(tiny.picture(1))
    with served.serving(tmp_path, models) as server:
        command = [python, "-W", "error", "-m", "serving.client", "--server", server.address]
        status = run(*command, "status", cwd=tmp_path).stdout
        assert "mrnn  version 1  AVAILABLE" in status and "mrnn_index  not served" in status
        answer = run(*command, "caption", photo, cwd=tmp_path).stdout.splitlines()
        expected = server.predict("caption", {"image_bytes": [photo.read_bytes()]}, name="mrnn")
    assert answer[0].startswith(f"{photo}  (log P")
    assert answer[1].split(maxsplit=1)[1] == expected["captions"][0, 0].decode()


@pytest.mark.slow
@pytest.mark.parametrize("program", [*PROGRAMS, "serving.client"])
def test_programs_start_outside_the_clone(program, with_all, tmp_path):
    done = run(with_all, "-m", program, "--help", cwd=tmp_path, check=False)
    assert f"python -m {program}" in done.stdout, done.stderr
    assert (
        str(packages(with_all))
        in run(
            with_all,
            "-c",
            f"import {program.split('.')[0]} as top; print(top.__file__)",
            cwd=tmp_path,
        ).stdout
    )
