"""mrnn: captions for your photographs, and search among them.

Usage:

    mrnn caption photo.jpg folder/            captions, best first
    mrnn index ~/Pictures                     makes an index of a folder, or brings it up to date
    mrnn search "a dog on the beach"          finds photographs; --open shows them in the browser
    mrnn similar photo.jpg                    finds photographs that look alike
    mrnn explore                              opens a page for all of this in the browser
    mrnn serve                                serves the model by TF Serving's protocol
    mrnn models                               lists the pretrained models

`mrnn COMMAND --help` lists the flags of a command. Nothing is downloaded, and nothing is written to
your folders: an index is kept in $XDG_DATA_HOME/mrnn, which is ~/.local/share/mrnn by default.
"""

import dataclasses
import html
import importlib.util
import json
import os
import sys
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mrnn_tf import extras, pretrained, program
from mrnn_tf.config import BeamSearch, Config, field
from mrnn_tf.errors import UserError
from mrnn_tf.escape import printable
from serving.explorer.options import ExplorerOptions
from serving.indexes import data_home, index_of, latest

_SHOWN_REASONS = 10  # of photographs that could not be read
_SHEET_STYLE = (
    "body{font:14px sans-serif;background:#222;color:#ddd}"
    "figure{display:inline-block;margin:8px;vertical-align:top;width:260px}"
    "img{width:260px;height:200px;object-fit:contain;background:#111}"
    "figcaption{overflow-wrap:anywhere}a{color:#9cf}"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelChoice(Config):
    """Which model answers."""

    model: str | None = field(None, "pretrained model, or the path of a model; default the first")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CaptionCommand(ModelChoice):
    """mrnn caption PHOTO_OR_FOLDER ... [flags]"""

    n: int = field(3, "captions of a photograph", at_least=1)
    prefix: str = field("", "first words of every caption")
    evidence: bool = field(False, "what the words owe to the photograph, in nats")
    output: str | None = field(None, "file for the captions, .jsonl or .parquet")
    json: bool = field(False, "print one JSON object a photograph, each on its line")


@dataclasses.dataclass(frozen=True, kw_only=True)
class IndexCommand(ModelChoice):
    """mrnn index FOLDER [flags]"""

    index: str | None = field(None, "directory of the index; default by the folder")
    json: bool = field(False, "print what changed as a JSON object")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchCommand(Config):
    """mrnn search "a sentence" ... [flags]"""

    folder: str | None = field(None, "folder that was indexed; default the last one")
    index: str | None = field(None, "or the directory of its index")
    k: int = field(10, "photographs to find", at_least=1)
    exact: bool = field(False, "certainly the best of all; slower")
    open: bool = field(False, "show the photographs in the browser")
    json: bool = field(False, "print one JSON object a photograph, each on its line")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimilarCommand(Config):
    """mrnn similar PHOTO [flags]"""

    folder: str | None = field(None, "folder that was indexed; default the last one")
    index: str | None = field(None, "or the directory of its index")
    k: int = field(10, "photographs to find", at_least=1)
    open: bool = field(False, "show the photographs in the browser")
    json: bool = field(False, "print one JSON object a photograph, each on its line")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExploreCommand(ExplorerOptions):
    """mrnn explore [FOLDER] [flags]"""

    open: bool = field(True, "open the page in the browser; --noopen does not")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServeCommand(ModelChoice):
    """mrnn serve [flags]"""

    port: int = field(8500, "port for gRPC; 0 takes a free one", at_least=0, below=65536)
    rest_api_port: int = field(8501, "port for REST; 0 takes a free one", at_least=0, below=65536)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelsCommand(Config):
    """mrnn models [flags]"""

    json: bool = field(False, "print one JSON object a model, each on its line")


def caption(paths: Sequence[str], options: CaptionCommand) -> None:
    """Prints or writes the captions of photographs."""
    from mrnn_tf import caption_files
    from mrnn_tf.captioner import Captioner, Unreadable
    from mrnn_tf.progress import Progress

    if options.output:
        caption_files.format_of(options.output)
    files = [file for path in paths for file in caption_files.list_images(path)]
    # Of a version that was exported the width is fixed: it is only named where it matters.
    width = {"beam": options.n} if options.n > BeamSearch.beam else {}
    captioner = Captioner.load(options.model, **width)
    rows, failures = [], []
    results = caption_files.caption_files(captioner, files, options.n, options.prefix)
    is_shown = not options.output and len(files) < 2
    for file, result in Progress(
        results, "captions", total=len(files), unit=" photographs", disable=is_shown, leave=False
    ):
        row = caption_files.row(file, result)
        failures += [result.reason] if isinstance(result, Unreadable) else []
        if options.output:
            rows.append(row)
        elif options.json:
            if options.evidence:
                row["words"] = [[dataclasses.astuple(w) for w in c.words] for c in result or ()]
            _print_json(row)
        elif isinstance(result, Unreadable) and len(files) > 1:
            print(f"error: {printable(result.reason)}", file=sys.stderr)
        elif result:
            print(printable(file))
            for each in result:
                print(f"{each.log_prob:9.2f}  {printable(each.text)}")
                if options.evidence:
                    words = (f"{word.text} {word.evidence:+.1f}" for word in each.words)
                    print(f"{'':11}{printable('  '.join(words))}")
    if options.output:
        caption_files.write(options.output, rows)
        captioned = f"{len(rows) - len(failures):,} of {len(rows):,}"
        print(f"captioned {captioned} photographs: {options.output}")
    elif failures:
        count = f"{len(failures)} of {len(files)} photographs could not be read."
        raise UserError(count if len(files) > 1 else failures[0])


def index(folders: Sequence[str], options: IndexCommand) -> None:
    """Makes the index of a folder, or brings it up to date."""
    from mrnn_tf.captioner import Captioner
    from mrnn_tf.photo_index import PhotoIndex

    [folder] = folders
    if not os.path.isdir(folder):
        raise UserError(f"{folder} is no folder.")
    path = options.index or str(index_of(folder))
    captioner = Captioner.load(options.model) if options.model else None
    made = PhotoIndex.build(path, folder, captioner)
    if options.json:
        facts = {"folder": made.folder, "index": path, "photographs": len(made)}
        _print_json({**facts, **dataclasses.asdict(made.changes)})
        return
    changes = made.changes
    print(
        f"{changes.added} new, {changes.changed} changed, {changes.moved} moved, {changes.removed} "
        f"removed: {len(made):,} photographs in {printable(path)}"
    )
    for reason in list(made.unreadable().values())[:_SHOWN_REASONS]:
        print(f"left out: {printable(reason)}", file=sys.stderr)
    if changes.unreadable > _SHOWN_REASONS:
        print(f"left out: {changes.unreadable} photographs in all", file=sys.stderr)
    print('next: mrnn search "a dog on the beach" --open')


def search(sentences: Sequence[str], options: SearchCommand) -> None:
    """Finds photographs by sentences."""
    photos = _load_index(options.index, options.folder)
    results = photos.search(list(sentences), options.k, exact=options.exact)
    for sentence, matches in zip(sentences, results, strict=True):
        if unknown := photos.unknown_words(sentence):
            told = f"the model does not know: {' '.join(unknown)}"
            print(printable(told), file=sys.stderr)
        if not matches:
            told = f'nothing is found by "{sentence}": it has no word that the model knows'
            print(printable(told), file=sys.stderr)
        _show(matches, options.json, {"sentence": sentence})
    if options.open:
        _open_sheet(zip(sentences, results, strict=True))


def similar(files: Sequence[str], options: SimilarCommand) -> None:
    """Finds photographs that look like one."""
    [file] = files
    matches = _load_index(options.index, options.folder).similar(file, options.k)
    _show(matches, options.json, {"photo": file})
    if options.open:
        _open_sheet([(file, matches)])


def explore(folders: Sequence[str], options: ExploreCommand) -> None:
    """Serves the explorer page: of a folder, or of the one that was indexed last."""
    from serving.explorer import server

    if folders:
        if options.photos:
            raise UserError("Give the folder once: as `photos`, or as an argument.")
        options = dataclasses.replace(options, photos=folders[0])
    server.explore(options)


def serve(_: Sequence[str], options: ServeCommand) -> None:
    """Serves a model; one that is no SavedModel yet is exported first, once."""
    from mrnn_tf import versions
    from serving import local
    from serving.options import LocalOptions

    path = pretrained.resolve(options.model)
    version = versions.newest(path) or _export(path)
    base = os.path.dirname(os.path.dirname(os.path.abspath(version)))
    ports = {"port": options.port, "rest_api_port": options.rest_api_port}
    local.serve(LocalOptions(model_base_path=base, **ports))


def _export(path: str) -> str:
    """The version that a model is served by; made where there is none."""
    from export.saved_model import export_run
    from mrnn_tf import schema, versions
    from mrnn_tf.captioner import load_run
    from mrnn_tf.inference import Inference, attached_encoder

    run = load_run(path)
    version = data_home() / "served" / run.fingerprint[:12] / schema.MODEL / "1"
    if not versions.is_whole(str(version)):
        print(f"exporting {path} to {version}, once", flush=True)
        export_run(run, Inference(run, attached_encoder(run)), str(version))
    return str(version)


def models(_: Sequence[str], options: ModelsCommand) -> None:
    """Lists the pretrained models."""
    for name in pretrained.names():
        card = pretrained.card(name)
        if options.json:
            is_default = name == pretrained.DEFAULT
            _print_json({"name": name, "default": is_default, **dataclasses.asdict(card)})
            continue
        figures = ", ".join(f"{key} {value:.3f}" for key, value in card.figures.items())
        print(f"{name}{'  (default)' if name == pretrained.DEFAULT else ''}")
        for line in (card.description, figures, card.terms):
            if line:
                print(f"    {line}")
    if not pretrained.names() and not options.json:
        print("this release has no pretrained model: give the path of one with --model")


def _load_index(index: str | None, folder: str | None):
    from mrnn_tf.photo_index import PhotoIndex, catalogue

    if index is None and folder is not None:
        index = str(index_of(folder))
        if not catalogue.exists(index):
            raise UserError(f"`folder` {folder} is not indexed yet: run `mrnn index {folder}`.")
    elif index is None:
        made = latest()
        if made is None:
            raise UserError("There is no index yet: run `mrnn index FOLDER` first.")
        index = str(made)
    return PhotoIndex.load(index)


def _show(matches: Sequence, as_json: bool, about: dict) -> None:
    for match in matches:
        if as_json:
            _print_json({**about, "path": match.path, "score": match.score})
        else:
            print(f"{match.score:9.2f}  {printable(match.path)}")


def _print_json(values: dict) -> None:
    print(json.dumps(values))  # in ASCII, so that any name of a file can be printed


def _open_sheet(results) -> None:
    """Writes a contact sheet of photographs and opens it in the browser."""
    parts = ["<!DOCTYPE html><meta charset=utf-8><title>mrnn</title>"]
    parts.append(f"<style>{_SHEET_STYLE}</style>")
    for heading, matches in results:
        parts.append(f"<h1>{html.escape(printable(heading))}</h1>")
        for match in matches:
            address = html.escape(Path(match.path).as_uri())
            name = html.escape(printable(os.path.basename(match.path)))
            picture = f'<a href="{address}"><img src="{address}" loading=lazy alt=""></a>'
            text = f"<figcaption>{match.score:.2f} {name}</figcaption>"
            parts.append(f"<figure>{picture}{text}</figure>")
    sheet = data_home() / "sheet.html"
    sheet.parent.mkdir(parents=True, exist_ok=True)
    sheet.write_text("\n".join(parts), encoding="utf-8")
    print(f"contact sheet: {sheet}", file=sys.stderr)
    webbrowser.open(sheet.as_uri())


class _Command(NamedTuple):
    options: type[Config]
    function: Callable[[Sequence[str], Any], None]
    takes: tuple[int, int | None]  # the least and the most arguments
    needs_tensorflow: bool = True


_COMMANDS = {
    "caption": _Command(CaptionCommand, caption, (1, None)),
    "index": _Command(IndexCommand, index, (1, 1)),
    "search": _Command(SearchCommand, search, (1, None)),
    "similar": _Command(SimilarCommand, similar, (1, 1)),
    "explore": _Command(ExploreCommand, explore, (0, 1)),
    "serve": _Command(ServeCommand, serve, (0, 0)),
    "models": _Command(ModelsCommand, models, (0, 0), needs_tensorflow=False),
}


def main() -> None:
    """Runs the command that the first argument names."""
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in ("--help", "-h", "help"):
        print(__doc__)
        return
    if name not in _COMMANDS:
        known = ", ".join(_COMMANDS)
        sys.exit(f"error: mrnn has no command {printable(name)}: its commands are {known}.")
    command = _COMMANDS[name]
    if "--help" in arguments or "-h" in arguments:
        print(_usage(command.options))
        return
    if command.needs_tensorflow and importlib.util.find_spec("tensorflow") is None:
        sys.exit(f"error: {extras.sentence(f'mrnn {name}', 'tensorflow', 'serve')}")
    program.define_flags(command.options)
    sys.argv = [f"mrnn {name}", *arguments]

    def run(words: list[str]) -> None:
        if unknown := [word for word in words if word.startswith("--")]:
            raise UserError(f"mrnn {name} has no flag {unknown[0]} (--help lists the flags).")
        least, most = command.takes
        if not least <= len(words) <= (len(words) if most is None else most):
            raise UserError(f"Wanted: {command.options.__doc__}; got {len(words)} arguments.")
        command.function(words, program.from_flags(command.options))

    program.run(run, pass_unknown_flags=True)


def _usage(options: type[Config]) -> str:
    lines = [f"Usage: {options.__doc__}", ""]
    for each in dataclasses.fields(options):
        default = "" if each.default in (None, "", False) else f"; default {each.default}"
        lines.append(f"  --{each.name:14} {each.metadata['help']}{default}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
