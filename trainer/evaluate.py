"""Evaluates a run on a split: captions, reranking, search, and a page to look at.

Example:

    python -m trainer.evaluate --job_dir runs/first --data data/flickr8k --split val \\
        --tasks captions,rerank,retrieval --output runs/first/report

captions writes results.json (COCO's format), nbest.json and references.json; rerank chooses among
the n-best captions by the nearest training images; retrieval ranks all images by every sentence and
all sentences by every image, exactly, and goes on where it was stopped; neighbours compares the
nearest training images by original and by refined features. All write scores.json, details.json
(what was said, ranked and found, image by image) and report.html. Records without captions get
captions but no scores. --data may be another dataset than the run was trained on, with features of
the same encoder; --reference_data then names the one with the training images and captions.
"""

from mrnn_tf import program
from trainer.options import CAPTIONS, NEAREST, RERANK, RETRIEVAL, TASKS, Decoding, EvaluateOptions

if __name__ == "__main__":  # before all other imports: --help needs no TensorFlow
    program.main("trainer.evaluate:main", EvaluateOptions)

import contextlib
import dataclasses
import functools
import itertools
import os
from typing import Any

import tensorflow as tf
from absl import logging

from mrnn_tf import checksums, files, schema
from mrnn_tf.config import REFINED, WHITENED
from mrnn_tf.data import pipeline, records
from mrnn_tf.errors import UserError
from mrnn_tf.metrics import captions as metrics
from mrnn_tf.metrics import coco
from mrnn_tf.model.words import nearest_words
from mrnn_tf.run import Run
from mrnn_tf.split import Split
from mrnn_tf.verification import verify
from trainer.evaluation import captions, neighbours, rerank, retrieval
from trainer.report import curves, page

# Beside the rows of retrieval in scores.json: of the second pass; mean shares by percentage.
SOFTMAX_SHARE, MATCHES = "softmax rows", "matches"

# Words to show the neighbours of; where a vocabulary has few of them, its longer frequent ones.
_SHOWN_WORDS = ("dog", "man", "women", "red", "two", "running", "jumps", "water", "ball", "street")


@dataclasses.dataclass(frozen=True)
class Context:
    """What the evaluators share; each thing is read or computed once, when it is needed first."""

    options: EvaluateOptions
    run: Run
    split: Split

    @functools.cached_property
    def captions(self) -> captions.Captions:
        """The captions of the split."""
        return captions.caption_split(self.run, self.split, self.options, self.options.batch_size)

    @functools.cached_property
    def training(self) -> Split:
        """The training split of the reference data."""
        data = self.options.reference_data
        if (data, schema.TRAIN) == (self.options.data, self.options.split):
            return self.split
        return Split.read(self.run, data, schema.TRAIN)

    @property
    def training_captions(self) -> list[str] | None:
        """The training captions, as far as there are any; they alone need no features."""
        data = self.options.reference_data
        if schema.TRAIN not in records.DatasetInfo.load(data).splits:
            return None
        if self.options.tasks != (CAPTIONS,):
            return list(itertools.chain.from_iterable(self.training.captions))
        with records.naming_corruption(data):
            return list(itertools.chain.from_iterable(pipeline.captions(data, schema.TRAIN)))

    def path(self, name: str) -> str:
        """A file of the output."""
        return tf.io.gfile.join(self.options.output, name)


# What an evaluator gives: figures for scores.json, fields of the report, and details.
Evaluated = tuple[dict[str, Any], dict[str, Any], dict[str, Any]]


def evaluate(options: EvaluateOptions) -> dict[str, Any]:
    """Evaluates a run; writes the files of the output and returns what scores.json holds."""
    with contextlib.ExitStack() as claimed:
        return _evaluate(options, claimed)


def _evaluate(options: EvaluateOptions, claimed: contextlib.ExitStack) -> dict[str, Any]:
    in_run = functools.partial(tf.io.gfile.join, options.job_dir)
    options = dataclasses.replace(
        options,
        reference_data=options.reference_data or options.data,
        output=options.output or in_run(schema.REPORT_DIR),
        tensorboard_dir=options.tensorboard_dir or in_run(schema.LOG_DIR),
    )
    if options.verify:
        verify(options.data, options.reference_data, options.job_dir, options.checkpoint_dir)
    run = Run.load(options.job_dir, options.checkpoint, options.checkpoint_dir)
    options = dataclasses.replace(options, tasks=_tasks(options))
    context = Context(options, run, Split.read(run, options.data, options.split))
    claimed.enter_context(files.alone_in(options.output))
    figures, sections, details = {}, {}, {}
    for task in options.tasks:
        figures[task], section, details[task] = EVALUATORS[task](context)
        sections |= section
    facts = _facts(context)
    scores = {**facts, **figures}
    written = ["results.json", "nbest.json"] if CAPTIONS in figures else []
    written += ["references.json"] if written and context.split.has_captions else []
    files.write_json(context.path(schema.DETAILS_FILE), details)
    written.append(schema.DETAILS_FILE)
    checksums.write(context.path(schema.SCORES_FILE), scores, options.output, written)
    report = page.Report(
        title=f"{facts['dataset']} described by an m-RNN",
        facts={name: str(value) for name, value in facts.items()},
        headline=options.headline,
        curves=curves.read(options.tensorboard_dir),
        nearest_words=_nearest_words(run),
        **sections,
    )
    pictures = context.split.pictures(report.shown)
    if NEAREST in figures:
        pictures |= context.training.pictures(report.shown)
    report = dataclasses.replace(report, pictures=pictures)
    files.write_whole(context.path("report.html"), page.render(report))
    _print(context, figures)
    print(f"next: open {context.path('report.html')}")
    return scores


def evaluate_captions(context: Context) -> Evaluated:
    """The captions, and their scores where there are reference captions."""
    options, split, captioned = context.options, context.split, context.captions
    coco.write_results(context.path("results.json"), captioned.best[options.headline])
    n_best = [{"image_id": i, **dataclasses.asdict(own)} for i, own in captioned.n_best.items()]
    files.write_json(context.path("nbest.json"), n_best)
    references, figures, cider = dict(zip(split.ids, split.captions, strict=True)), {}, {}
    if split.has_captions:
        coco.write_references(context.path("references.json"), references)
        training = context.training_captions
        for row, best in captioned.best.items():
            is_headline = row == options.headline
            meteor = options.meteor and is_headline
            scores = metrics.evaluate(references, best, training=training, meteor=meteor)
            figures[row] = scores.overall
            if is_headline:
                figures[row] |= captions.perplexity(context.run, split, options.batch_size)
                cider = {image: own["cider"] for image, own in scores.per_image.items()}
    examples = [
        page.Example(image, references[image], chosen, cider.get(image))
        for image, chosen in captioned.chosen.items()
    ]
    return figures, {"scores": figures, "examples": examples}, {"captions": captioned.best}


def evaluate_rerank(context: Context) -> Evaluated:
    """The n-best captions reranked by consensus."""
    settings, training = rerank.RerankSettings(), context.training
    reranking = rerank.rerank_split(
        context.run,
        context.split,
        training,
        context.captions.n_best,
        settings,
        context.options.meteor,
    )
    note = f"k {settings.k}, {WHITENED} features (nnref: {REFINED} ones, which all count alike), "
    note += f"{len(training):,} training images"
    section = {"reranking": reranking, "reranking_note": note}
    changes = [dataclasses.asdict(change) for change in reranking.changes]
    return reranking.figures, section, {"captions": reranking.captions, "changes": changes}


def evaluate_retrieval(context: Context) -> Evaluated:
    """The ranks of images and sentences."""
    data = context.run, context.split, context.training.features
    ranking = retrieval.rank_split(*data, context.options, context.path("retrieval.work"))
    more = {SOFTMAX_SHARE: ranking.softmax_share, MATCHES: ranking.curves}
    ranks = {row: values.tolist() for row, values in ranking.ranks.items()}
    details = {"ranks": ranks, "searches": ranking.searches}
    return ranking.figures | more, {"ranking": ranking}, details


def evaluate_neighbours(context: Context) -> Evaluated:
    """The nearest training images by original and by refined features."""
    found = neighbours.compare_neighbours(context.run, context.split, context.training)
    details = {"agreement": found.agreement, "examples": found.examples}
    return found.figures, {"neighbourhoods": found}, details


EVALUATORS = {
    CAPTIONS: evaluate_captions,
    RERANK: evaluate_rerank,
    RETRIEVAL: evaluate_retrieval,
    NEAREST: evaluate_neighbours,
}


def _tasks(options: EvaluateOptions) -> tuple[str, ...]:
    """The evaluators to run, in order; rerank runs unasked where there are training captions."""
    asked = options.tasks if options.tasks is not None else (CAPTIONS, RERANK)
    if not asked:
        raise UserError(f"`tasks` must be of {', '.join(TASKS)}; got none.")
    data = options.reference_data
    training = records.DatasetInfo.load(data).splits.get(schema.TRAIN)
    if training is None or not training.captions:
        if options.tasks is None:
            logging.info("%s holds no training captions: nothing is reranked.", data)
            return (CAPTIONS,)
        if set(asked) - {CAPTIONS}:
            raise UserError(
                f"`tasks` {','.join(asked)} needs training images, which {data} does not hold: "
                "name records that do by `reference_data`."
            )
    if RERANK in asked:
        asked = (CAPTIONS, *asked)  # the n-best lists to rerank
    return tuple(task for task in TASKS if task in asked)


def _facts(context: Context) -> dict[str, Any]:
    options, run, source = context.options, context.run, context.split.source
    parameters = f"{run.network.model.parameter_count:,} parameters"
    decoding = (setting.name for setting in dataclasses.fields(Decoding))
    return {
        "run": options.job_dir,
        "step": run.step,
        "dataset": source.info.dataset,
        "split": source.split,
        "images": len(context.split),
        "encoder": run.config.encoder["identity"],
        "model": f"{run.config.model.variant}, cell {run.config.model.cell}, {parameters}",
        "decoding": ", ".join(f"{name} {getattr(options, name)}" for name in decoding),
    }


def _nearest_words(run: Run) -> dict[str, list[str]]:
    model, vocabulary = run.network.model, run.vocabulary
    words = [word for word in _SHOWN_WORDS if word in vocabulary.words]
    frequent = [word for word in vocabulary.words[len(schema.RESERVED_WORDS) :] if word[3:]]
    words += [word for word in frequent if word not in words][: max(0, 4 - len(words))]
    return {w: [near for near, _ in nearest_words(model, vocabulary, w, k=8)] for w in words}


def _print(context: Context, figures: dict[str, dict[str, Any]]) -> None:
    if ranks := figures.get(RETRIEVAL):
        rows = {row: values for row, values in ranks.items() if row not in (SOFTMAX_SHARE, MATCHES)}
        _print_table(rows, page.RANK_METRICS)
        print(f"{SOFTMAX_SHARE}: {ranks[SOFTMAX_SHARE]:.3f} of those of scoring every pair")
    if CAPTIONS not in figures:
        return
    best = context.captions.best[context.options.headline]
    for image_id, caption in itertools.islice(best.items(), 5):
        print(f"{image_id}: {caption}")
    if figures[CAPTIONS]:
        more = {"mean_length": "words", "perplexity_without_unknown": "without <unk>"}
        _print_table(figures[CAPTIONS] | figures.get(RERANK, {}), page.SCORE_METRICS | more)
    else:
        print(f"{len(best)} images captioned; the records hold no references to score by.")


def _print_table(rows: dict[str, dict[str, float]], metrics: dict[str, str]) -> None:
    shown = {m: name for m, name in metrics.items() if any(m in values for values in rows.values())}
    for row, values in {"": shown, **rows}.items():
        cells = (page.figure(values[m], m) if m in values else "" for m in shown)
        widths = (max(len(name), 6) for name in shown.values())
        print(f"{row:{max(map(len, rows))}}", *map(str.rjust, cells, widths))


def main(options: EvaluateOptions) -> None:
    logs = options.tensorboard_dir or os.environ.get("AIP_TENSORBOARD_LOG_DIR")
    evaluate(dataclasses.replace(options, tensorboard_dir=logs))
