"""Evaluates a run on a split: captions, reranking, search, and a page to look at.

Example:

    python -m trainer.evaluate --job_dir runs/first --data data/flickr8k --split val \\
        --tasks captions,rerank,retrieval --output runs/first/report

captions writes results.json (COCO's format), nbest.json and references.json; rerank chooses among
the n-best captions by the nearest training images; retrieval ranks all images by every sentence and
all sentences by every image, exactly, and goes on where it was stopped. All write scores.json and
report.html. Records without captions get captions but no scores. --data may be another dataset than
the run was trained on, with features of the same encoder; --reference_data then names the one with
the training images and captions. An image whose features are no numbers has the empty caption.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable

import tensorflow as tf
from absl import flags, logging

from mrnn_tf import files, program, schema
from mrnn_tf.data import pipeline, records
from mrnn_tf.errors import UserError
from mrnn_tf.metrics import captions as metrics
from mrnn_tf.metrics import coco
from mrnn_tf.model.words import nearest_words
from mrnn_tf.retrieval import marginal
from mrnn_tf.run import Run
from mrnn_tf.split import Split
from trainer import cards, curves, report, reranking, retrieval_page
from trainer.captioning import Captioned, Decoding, beam_row, caption_images
from trainer.evaluation.retrieval import Ranking, RetrievalSettings, rank_split
from trainer.loops import Evaluator

CAPTIONS, RERANK, RETRIEVAL = TASKS = ("captions", "rerank", "retrieval")
_DEFAULT, _RANKING = Decoding(), RetrievalSettings()
_JOB_DIR = flags.DEFINE_string("job_dir", None, "The run directory.")
_DATA = flags.DEFINE_string("data", None, "Records made by trainer.prepare.")
_SPLIT = flags.DEFINE_enum("split", schema.VAL, schema.SPLITS, "Which of its splits.")
_REFERENCE_DATA = flags.DEFINE_string(
    "reference_data", None, "Records with the training split; --data by default."
)
_TASKS = flags.DEFINE_list("tasks", [CAPTIONS, RERANK], f"Of {', '.join(TASKS)}.")
_OUTPUT = flags.DEFINE_string("output", None, "Folder; report/ in the run directory by default.")
_CHECKPOINT_DIR = flags.DEFINE_string("checkpoint_dir", None, "As given to trainer.task.")
_WHICH = flags.DEFINE_enum("checkpoint", "best", ["best", "latest"], "Which weights.")
_BEAM = flags.DEFINE_integer("beam", _DEFAULT.beam, "Width for results.json.", 1)
_N_BEST = flags.DEFINE_integer("n_best", _DEFAULT.n_best, "Width and length of nbest.json.", 1)
_WIDTHS = flags.DEFINE_list("widths", list(_DEFAULT.widths), "Further widths to compare.")
_LENGTH_POWER = flags.DEFINE_float(
    "length_power", _DEFAULT.length_power, "Sentences are ranked by log P / words^length_power."
)
_MAX_WORDS = flags.DEFINE_integer("max_words", _DEFAULT.max_words, "The longest caption.", 1)
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 64, "Images at a time.", 1)
_NORMALISER = flags.DEFINE_enum(
    "normaliser", _RANKING.normaliser, marginal.NORMALISERS, "log P(s) of the search for sentences."
)
_SAMPLE = flags.DEFINE_integer("sample", _RANKING.sample, "Training images that it is taken of.", 1)
_SAMPLE_SEED = flags.DEFINE_integer("sample_seed", _RANKING.sample_seed, "Which ones.", 0)
_IMAGES = flags.DEFINE_integer("images", 0, "Searches among the first so many; 0: all.", 0)
_METEOR = flags.DEFINE_bool("meteor", True, "Run METEOR where there is Java: half a minute more.")

# Words to show the neighbours of; where a vocabulary has few of them, its longer frequent ones.
_SHOWN_WORDS = ("dog", "man", "women", "red", "two", "running", "jumps", "water", "ball", "street")


def main(_: list[str]) -> None:
    for flag in (_JOB_DIR, _DATA):
        if flag.value is None:
            raise UserError(f"--{flag.name} is required (--help shows an example).")
    decoding = Decoding(
        _BEAM.value, _N_BEST.value, _widths(), _LENGTH_POWER.value, _MAX_WORDS.value
    )
    output = _OUTPUT.value or tf.io.gfile.join(_JOB_DIR.value, schema.REPORT_DIR)
    run = Run.load(_JOB_DIR.value, _WHICH.value, _CHECKPOINT_DIR.value)
    source = run.source(_DATA.value, _SPLIT.value)
    source.info.shards(source.directory, source.split)  # refuses a split that is not there
    tasks = _tasks(_REFERENCE_DATA.value or _DATA.value)
    tf.io.gfile.makedirs(output)

    def place(name: str) -> str:
        return tf.io.gfile.join(output, name)

    with records.naming_corruption(_DATA.value):
        captioned, scores, cider, sections = [], {}, {}, []
        reference_data = _REFERENCE_DATA.value or _DATA.value
        if tasks & {CAPTIONS, RERANK}:
            captioned = caption_images(run, source, decoding, _BATCH_SIZE.value)
            _write_captions(captioned, beam_row(decoding.beam), place)
            scores[CAPTIONS] = {}
        if captioned and source.info.splits[source.split].captions:
            references = {image.image_id: image.references for image in captioned}
            coco.write_references(place("references.json"), references)
            scores[CAPTIONS], cider = _score(run, source, captioned, references, decoding)
        if RERANK in tasks and captioned:
            reranked = reranking.rerank(run, reference_data, source, captioned)
            scores[RERANK] = reranked.rows
            sections.append((reranked.heading, reranked.section))
        if RETRIEVAL in tasks:
            ranks = rank_split(
                run,
                Split.read(run, _DATA.value, _SPLIT.value, _IMAGES.value),
                Split.read(run, reference_data, schema.TRAIN).features,
                _ranking(),
                place("retrieval.work"),
            )
            scores[RETRIEVAL] = ranks.figures | {"softmax rows": ranks.softmax_share}
            sections.append(("Search", retrieval_page.section(ranks)))
            _print_ranks(ranks)
    facts = _facts(run, source, decoding)
    files.write_json(place("scores.json"), {**facts, **scores})
    page = report.Report(
        title=f"{source.info.dataset} described by an m-RNN",
        facts={name: str(value) for name, value in facts.items()},
        scores=scores.get(CAPTIONS, {}),
        curves=curves.read(tf.io.gfile.join(_JOB_DIR.value, schema.LOG_DIR)),
        nearest_words=_nearest_words(run),
        examples=_examples(source, captioned, cider),
        sections=tuple(sections),
        headline=beam_row(decoding.beam),
    )
    files.write_whole(place("report.html"), report.render(page))
    if captioned:
        _print(scores, captioned, beam_row(decoding.beam))
    print(f"next: open {place('report.html')}")


def _tasks(reference_data: str) -> set[str]:
    """What is to be done; reranking is done unasked where there are training images."""
    tasks = set(_TASKS.value)
    if not tasks or tasks - set(TASKS):
        raise UserError(
            f"--tasks must be of {', '.join(TASKS)}, like {','.join(TASKS[:2])}; "
            f"got {','.join(_TASKS.value)}."
        )
    training = records.DatasetInfo.load(reference_data).splits.get(schema.TRAIN)
    if training is None or not training.captions:
        if not _TASKS.present:
            logging.info("%s holds no training captions: nothing is reranked.", reference_data)
            return tasks - {RERANK}
        if tasks - {CAPTIONS}:
            raise UserError(
                f"--tasks {','.join(_TASKS.value)} needs training images, which {reference_data} "
                "does not hold: name records that do by --reference_data."
            )
    return tasks


def _ranking() -> RetrievalSettings:
    return RetrievalSettings(_NORMALISER.value, _SAMPLE.value, _SAMPLE_SEED.value, _IMAGES.value)


def _write_captions(captioned: list[Captioned], best: str, place: Callable[[str], str]) -> None:
    if silent := sum(not image.beam.captions for image in captioned):
        logging.warning("%d images have no caption: their features are no numbers.", silent)
    coco.write_results(place("results.json"), {i.image_id: i.rows[best] for i in captioned})
    files.write_json(place("nbest.json"), [_n_best(image) for image in captioned])


def _widths() -> tuple[int, ...]:
    try:
        widths = tuple(int(width) for width in _WIDTHS.value)
    except ValueError:
        widths = (0,)
    if min(widths, default=1) < 1:
        raise UserError(f"--widths must be numbers from 1, like 1,3,5; got {_WIDTHS.value}.")
    return widths


def _score(
    run: Run,
    source: pipeline.Source,
    captioned: list[Captioned],
    references: dict[str, tuple[str, ...]],
    decoding: Decoding,
) -> tuple[dict[str, dict], dict[str, float]]:
    """The scores of every decoding, and the CIDEr of every image with the chosen one."""
    training = None
    reference_data = _REFERENCE_DATA.value or source.directory
    if schema.TRAIN in records.DatasetInfo.load(reference_data).splits:
        training = itertools.chain.from_iterable(pipeline.captions(reference_data, schema.TRAIN))
        training = list(training)
    scores, best = {}, beam_row(decoding.beam)
    for row in decoding.rows:
        found = metrics.evaluate(
            references,
            {image.image_id: image.rows[row] for image in captioned},
            training=training,
            meteor=_METEOR.value and row == best,
        )
        scores[row] = found.overall
        if row == best:
            cider = {image_id: each["cider"] for image_id, each in found.per_image.items()}
    batches = pipeline.evaluation_batches(source, _BATCH_SIZE.value)
    network = run.network
    measured = Evaluator(network, pipeline.with_pixels(batches, network.encoder)).evaluate(
        tf.constant(-1)
    )
    for name in ("perplexity", "perplexity_without_unknown"):
        if math.isfinite(measured[name]):  # or features were no numbers
            scores[best][name] = measured[name]
    return scores, cider


def _facts(run: Run, source: pipeline.Source, decoding: Decoding) -> dict:
    split = source.info.splits[source.split]
    return {
        "run": _JOB_DIR.value,
        "step": run.step,
        "dataset": source.info.dataset,
        "split": source.split,
        "images": split.images,
        "encoder": run.config.encoder["identity"],
        "model": f"{run.config.model.variant}, cell {run.config.model.cell}, "
        f"{run.network.model.count_params():,} parameters",
        "decoding": ", ".join(f"{k} {v}" for k, v in dataclasses.asdict(decoding).items()),
    }


def _n_best(image: Captioned) -> dict:
    return {"image_id": image.image_id, **dataclasses.asdict(image.n_best)}


def _nearest_words(run: Run) -> dict[str, list[str]]:
    words = [word for word in _SHOWN_WORDS if word in run.vocabulary.words]
    frequent = [word for word in run.vocabulary.words[len(schema.RESERVED_WORDS) :] if word[3:]]
    words += [word for word in frequent if word not in words][: max(0, 4 - len(words))]
    model = run.network.model
    return {
        word: [near for near, _ in nearest_words(model, run.vocabulary, word, k=8)]
        for word in words
    }


def _examples(
    source: pipeline.Source, captioned: list[Captioned], cider: dict[str, float]
) -> tuple[cards.Example, ...]:
    examples = [
        cards.Example(
            image_id=image.image_id,
            image=None,
            references=image.references,
            captions=image.beam.captions,
            log_probs=image.beam.log_probs,
            words=image.words,
            word_log_probs=image.word_log_probs,
            evidence=image.evidence,
            cider=cider.get(image.image_id),
        )
        for image in captioned
    ]
    shown = {example.image_id for _, some in cards.chosen(examples) for example in some}
    pictures = pipeline.pictures(source, shown)
    return tuple(dataclasses.replace(e, image=pictures.get(e.image_id)) for e in examples)


def _print(scores: dict[str, dict[str, dict]], captioned: list[Captioned], best: str) -> None:
    for image in captioned[:5]:
        print(f"{image.image_id}: {image.rows[best]}")
    if not scores[CAPTIONS]:
        print(f"{len(captioned)} images captioned; the records hold no references to score by.")
        return
    print(f"{'':16} BLEU-1 BLEU-2 BLEU-3 BLEU-4  CIDEr ROUGE-L  words")
    for row, values in (scores[CAPTIONS] | scores.get(RERANK, {})).items():
        bleu = " ".join(f"{values[f'bleu_{n}']:6.3f}" for n in range(1, 5))
        print(
            f"{row:16} {bleu} {values['cider']:6.3f}  {values['rouge_l']:6.3f} "
            f"{values['mean_length']:6.2f}"
        )
    measured = scores[CAPTIONS][best]
    if "perplexity" in measured:
        known = measured["perplexity_without_unknown"]
        print(f"perplexity {measured['perplexity']:.3f}, without <unk> {known:.3f}")


def _print_ranks(ranks: Ranking) -> None:
    print(f"{'':28}    R@1    R@5   R@10  median rank")
    for row, values in ranks.figures.items():
        recalls = " ".join(f"{values[f'r_{k}']:6.1f}" for k in (1, 5, 10))
        print(f"{row:28} {recalls}  {values['median_rank']:6.1f}")
    print(f"softmax rows: {ranks.softmax_share:.3f} of those of scoring every pair")


if __name__ == "__main__":
    program.run(main)
