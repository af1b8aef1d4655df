"""Reranks the n-best lists of any captioning system by consensus.

Examples:

    python -m trainer.rerank --hypotheses runs/first/report/nbest.json --method mbr \\
        --output reranked.json
    python -m trainer.rerank --hypotheses runs/first/report/nbest.json --method cider \\
        --data data/flickr8k --job_dir runs/first --output reranked.json

--hypotheses: [{"image_id": 1, "captions": ["a dog runs", ...], "log_probs": [-7.1, ...]}, ...], the
best first; log_probs may be left out. Their images are those of --split in --data. The methods:

  mbr            most similar to the other hypotheses; needs the n-best lists only
  cider, bleu, sentence_bleu
                 most similar, by this similarity, to the --m most similar captions of the --k
                 nearest training images; needs --data, and --job_dir for the features
  combined       cider, with the other hypotheses for --weight of it all, and --log_prob times
                 log P / words^0.7
  oracle_cider, oracle_bleu
                 best by the captions of people: what reranking could reach; needs --references,
                 captions in COCO's format, or --data

Writes one caption an image, in COCO's format for results. An image without hypotheses has the empty
caption, and for an oracle one without references keeps its first. Where there are fewer than --k
training images, all are neighbours; where there are fewer than --m captions, all count. --tune
tries many k and m (and for combined its two weights), uses the best and writes all to tuning.json
and tuning.svg beside the results.
"""

import os

import tensorflow as tf
from absl import flags, logging

from mrnn_tf import files, program, schema
from mrnn_tf.consensus import reranking as consensus
from mrnn_tf.consensus.oracle import Oracle
from mrnn_tf.consensus.reranking import Compared
from mrnn_tf.data import pipeline, records
from mrnn_tf.errors import UserError
from mrnn_tf.metrics import coco, nbest
from mrnn_tf.metrics.coco import ImageId
from mrnn_tf.metrics.nbest import NBest
from mrnn_tf.run import Run
from trainer import methods, tuning
from trainer.methods import Settings
from trainer.neighbourhood import FEATURES, Neighbourhood

_HYPOTHESES = flags.DEFINE_string("hypotheses", None, "File with n-best lists.")
_METHOD = flags.DEFINE_enum("method", "cider", methods.METHODS, "How to choose.")
_DATA = flags.DEFINE_string("data", None, "Records with the images and the training split.")
_REFERENCE_DATA = flags.DEFINE_string(
    "reference_data", None, "Records with the training split; --data by default."
)
_SPLIT = flags.DEFINE_enum("split", schema.VAL, schema.SPLITS, "Where the images are in --data.")
_JOB_DIR = flags.DEFINE_string("job_dir", None, "The run whose features tell what is near.")
_REFERENCES = flags.DEFINE_string("references", None, "Captions of people, for oracles and --tune.")
_OUTPUT = flags.DEFINE_string("output", None, "File for the captions chosen.")
_FEATURES = flags.DEFINE_enum("features", FEATURES[0], FEATURES, "What neighbours are near by.")
_K = flags.DEFINE_integer("k", consensus.K, "How many neighbours.", 1)
_M = flags.DEFINE_integer("m", None, "How many captions; 125 for cider and combined, else 175.", 1)
_WEIGHT = flags.DEFINE_float(
    "weight", Settings.weight, "What the other hypotheses count in combined.", 0.0, 1.0
)
_LOG_PROB = flags.DEFINE_float("log_prob", Settings.log_prob, "What log P counts in combined.", 0.0)
_TUNE = flags.DEFINE_bool("tune", False, "Cross-validate k and m on the split.")


def main(_: list[str]) -> None:
    if _DATA.value is None:
        return _rerank()
    with records.naming_corruption(_DATA.value):
        return _rerank()


def _rerank() -> None:
    for flag in (_HYPOTHESES, _OUTPUT):
        if flag.value is None:
            raise UserError(f"--{flag.name} is required (--help shows an example).")
    method = _METHOD.value
    if _TUNE.value and method not in methods.BY_NEIGHBOURS:
        raise UserError(f"--tune: the method {method} has nothing to tune.")
    n_best = nbest.read_n_best(_HYPOTHESES.value)
    settings = Settings(_K.value, _M.value, _WEIGHT.value, _LOG_PROB.value)
    if method in methods.ORACLES:
        oracle = _oracle(n_best)
        found = oracle.cider if method == "oracle_cider" else oracle.bleu
    else:
        compared = _compare(method, n_best)
        if _TUNE.value:
            settings = _tune(method, n_best, compared)
        found = {
            image: methods.scores(method, compared[image], some, settings)
            for image, some in n_best.items()
            if some.captions
        }
    results = {
        image: some.captions[consensus.order(found[image])[0] if image in found else 0]
        if some.captions
        else ""
        for image, some in n_best.items()
    }
    tf.io.gfile.makedirs(os.path.dirname(_OUTPUT.value) or ".")
    coco.write_results(_OUTPUT.value, results)
    changed = sum(bool(s.captions) and results[i] != s.captions[0] for i, s in n_best.items())
    print(f"{method}: another caption than the first for {changed} of {len(results)} images")
    references = _REFERENCES.value or "captions.json"
    print(f"next: python -m mrnn_tf.metrics --references {references} --results {_OUTPUT.value}")


def _compare(method: str, n_best: dict[ImageId, NBest]) -> dict[ImageId, Compared]:
    if method == methods.MBR:
        return methods.compare(method, n_best)
    for flag in (_DATA, _JOB_DIR):
        if flag.value is None:
            raise UserError(f"--{flag.name} is required for the method {method}.")
    run = Run.load(_JOB_DIR.value)
    source = run.source(_DATA.value, _SPLIT.value)
    place = f"the split {_SPLIT.value} of {_DATA.value}"
    _check_images(
        n_best, [image for image, _ in pipeline.captions_by_id(_DATA.value, _SPLIT.value)], place
    )
    training = Neighbourhood(run, _REFERENCE_DATA.value or _DATA.value, _FEATURES.value)
    k = max(_K.value, *tuning.KS) if _TUNE.value else _K.value
    if (there := len(training.corpus.images) - 1) < k:
        logging.warning("There are %d training images: all are neighbours, not %d.", there, k)
    return methods.compare(method, n_best, training.corpus, training.nearest(source, k))


def _oracle(n_best: dict[ImageId, NBest]) -> Oracle:
    """What people say of the hypotheses, by --references or the captions of the records."""
    if _REFERENCES.value:
        place, references = _REFERENCES.value, coco.read_references(_REFERENCES.value)
    elif _DATA.value:
        place = f"the split {_SPLIT.value} of {_DATA.value}"
        references = dict(pipeline.captions_by_id(_DATA.value, _SPLIT.value))
    else:
        raise UserError("--references is required (or --data), to know what people say.")
    _check_images(n_best, references, place)
    references = {str(image): some for image, some in references.items()}
    if not any(map(any, references.values())):
        raise UserError(f"{place} has no captions: there is nothing to choose by.")
    wanted = {image: references[str(image)] for image in n_best}
    return Oracle(wanted, {image: some.captions for image, some in n_best.items()})


def _tune(method: str, n_best: dict[ImageId, NBest], compared: dict[ImageId, Compared]) -> Settings:
    start = Settings(_K.value, _M.value, _WEIGHT.value, _LOG_PROB.value)
    grids = tuning.tune(method, n_best, compared, _oracle(n_best), start)
    folder = os.path.dirname(_OUTPUT.value)
    tf.io.gfile.makedirs(folder or ".")
    tables = [grid.to_json() for grid in grids]
    files.write_json(
        os.path.join(folder, "tuning.json"),
        {"method": method, "features": _FEATURES.value, "grids": tables},
    )
    picture = tuning.plot(grids, f"Consensus reranking by {method}, {_FEATURES.value} features")
    files.write_whole(os.path.join(folder, "tuning.svg"), picture)
    best = grids[-1].best
    told = ", ".join(f"{name} {value:.4f}" for name, value in grids[-1].validated.items())
    print(f"tuned: k {best.k}, m {best.m}, weight {best.weight}, log_prob {best.log_prob}")
    print(f"halves, each with what is best on the other: {told}")
    print(f"all of the grid: {os.path.join(folder, 'tuning.svg')}")
    return best


def _check_images(n_best: dict[ImageId, NBest], known, place: str) -> None:
    """Refuses images that are not there; says how many have no hypotheses."""
    known = {str(image): None for image in known}
    unknown = [image for image in n_best if str(image) not in known]
    if unknown:
        raise UserError(
            f"{len(unknown)} of {len(n_best)} images of {_HYPOTHESES.value} are not in {place}: "
            f"{coco.first_few(unknown)}; it has {coco.first_few(known) or 'no images'}."
        )
    if len(n_best) < len(known):
        logging.warning(
            "%d images of %s have no hypotheses: left out.", len(known) - len(n_best), place
        )


if __name__ == "__main__":
    program.run(main)
