"""Reranks the n-best lists of any captioning system by consensus.

Examples:

    python -m trainer.rerank --hypotheses runs/first/report/nbest.json --method mbr \\
        --output reranked.json
    python -m trainer.rerank --hypotheses runs/first/report/nbest.json --method cider \\
        --data data/flickr8k --job_dir runs/first --output reranked.json

--hypotheses: [{"image_id": 1, "captions": ["a dog runs", ...], "log_probs": [-7.1, ...]}, ...], the
best first; log_probs may be left out. Their images are those of --split in --data. The methods:

  mbr            most similar to the other hypotheses; needs the n-best lists only
  cider, bleu    most similar, by this similarity, to the --m most similar captions of the --k
                 nearest training images; needs --data, and --job_dir for the features
  combined       cider, with the other hypotheses for --weight of it all, and --log_prob times
                 log P / words^0.7
  oracle_cider, oracle_bleu
                 best by the reference captions: what reranking could reach; needs --references,
                 captions in COCO's format, or --data

Writes one caption an image, in COCO's format for results. An image without hypotheses has the empty
caption, and for an oracle one without references keeps its first. Where there are fewer than --k
training images, all are neighbours; where there are fewer than --m captions, all count. --tune
tries many k and m (and for combined its two weights), uses the best and writes all to tuning.json
and tuning.svg beside the results.
"""

from mrnn_tf import program
from trainer.options import RerankOptions

if __name__ == "__main__":  # before all other imports: --help needs no TensorFlow
    program.main("trainer.rerank:rerank", RerankOptions)

import os
from collections.abc import Collection, Mapping

from absl import logging

from mrnn_tf import files, schema
from mrnn_tf.config import BY_NEIGHBOURS, MBR, ORACLES, RerankSettings
from mrnn_tf.consensus import ngrams, reranking, tuning
from mrnn_tf.consensus.oracle import Oracle
from mrnn_tf.consensus.reranking import Compared, Comparison
from mrnn_tf.data import pipeline, records
from mrnn_tf.errors import UserError
from mrnn_tf.metrics import coco, nbest
from mrnn_tf.run import Run
from mrnn_tf.split import Split
from mrnn_tf.verification import verify
from trainer.evaluation.rerank import find_neighbours
from trainer.report import plots

NBestLists = Mapping[coco.ImageId, nbest.NBest]


def rerank(options: RerankOptions) -> dict[coco.ImageId, str]:
    """Writes the chosen captions, and gives them back."""
    method = options.method
    if options.tune and method not in BY_NEIGHBOURS:
        raise UserError(f"`tune`: the method {method} has nothing to tune.")
    if options.verify:
        verify(options.data, options.reference_data, options.job_dir)
    n_best = nbest.read_n_best(options.hypotheses)
    if method in ORACLES:
        oracle = _oracle(options, n_best)
        scores = oracle.cider if method == "oracle_cider" else oracle.bleu
    else:
        compared = _compare(options, n_best)
        scores = compared.scores(method, _tune(options, compared) if options.tune else options)
    results, changed = {}, 0
    for image, hypotheses in n_best.items():
        captions = hypotheses.captions or ("",)
        best = reranking.order(scores[image])[0] if len(scores.get(image, ())) else 0
        results[image] = captions[best]
        changed += captions[best] != captions[0]
    coco.write_results(options.output, results)
    print(f"{method}: another caption than the first for {changed} of {len(results)} images")
    references = options.references or "captions.json"
    print(f"next: python -m mrnn_tf.metrics --references {references} --results {options.output}")
    return results


def _compare(options: RerankOptions, n_best: NBestLists) -> Compared:
    if options.method == MBR:
        return Comparison(MBR)(n_best)
    for name in ("data", "job_dir"):
        if getattr(options, name) is None:
            raise UserError(f"`{name}` is required for the method {options.method}.")
    run = Run.load(options.job_dir)
    split = Split.read(run, options.data, options.split)
    _check_ids(options, n_best, split.ids, options.source)
    training = Split.read(run, options.reference_data or options.data, schema.TRAIN)
    images, k = len(training), max(options.k, *tuning.KS) if options.tune else options.k
    if images < k:
        logging.warning("There are %d training images: all are neighbours, not %d.", images, k)
    near = find_neighbours(run, split, training, n_best, k, options.features)
    return Comparison(options.method, ngrams.Corpus.of(training.captions))(n_best, near)


def _oracle(options: RerankOptions, n_best: NBestLists) -> Oracle:
    """What the reference captions say of the hypotheses: those of a file, or of the records."""
    if options.references:
        source, references = options.references, coco.read_references(options.references)
    elif options.data:
        source = options.source
        with records.naming_corruption(options.data):
            references = dict(pipeline.captions_by_id(options.data, options.split))
    else:
        raise UserError("`references` is required (or `data`), for the captions to choose by.")
    _check_ids(options, n_best, references, source)
    references = {str(image): captions for image, captions in references.items()}
    if not any(map(any, references.values())):
        raise UserError(f"{source} has no captions: there is nothing to choose by.")
    wanted = {image: references[str(image)] for image in n_best}
    return Oracle(wanted, {image: hypotheses.captions for image, hypotheses in n_best.items()})


def _tune(options: RerankOptions, compared: Compared) -> RerankSettings:
    """The best settings; all that were tried go to files beside the results."""
    oracle = _oracle(options, compared.n_best)
    start = RerankSettings(options.k, options.m, options.weight, options.log_prob)
    grids = tuning.tune(options.method, compared, oracle, start)
    folder = os.path.dirname(options.output)
    content = {"method": options.method, "features": options.features}
    content["grids"] = [grid.to_json() for grid in grids]
    files.write_json(os.path.join(folder, "tuning.json"), content)
    title = f"Consensus reranking by {options.method}, {options.features} features"
    picture = os.path.join(folder, "tuning.svg")
    files.write_whole(picture, plots.heat_map(list(map(_heat_table, grids)), title))
    best = grids[-1].best
    print(f"tuned: k {best.k}, m {best.m}, weight {best.weight}, log_prob {best.log_prob}")
    print(f"halves, each with what is best on the other: {_listed(grids[-1].validated)}")
    print(f"all of the grid: {picture}")
    return best


def _heat_table(grid: tuning.Grid) -> plots.HeatTable:
    """BLEU-4 and CIDEr of every setting, shaded by the metric that chooses."""
    rows, columns = (
        [f"{name} {value:g}" for value in values] for name, values in grid.fields.items()
    )
    cells = [
        (scores[grid.metric], f"B4 {scores['bleu_4']:.4f}\nC {scores['cider']:.4f}")
        for _, scores in grid.cells
    ]
    heading = f"best by {grid.metric}; cross-validated {_listed(grid.validated)}"
    return plots.HeatTable(heading, rows, columns, cells)


def _listed(scores: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in scores.items())


def _check_ids(options: RerankOptions, n_best: NBestLists, known: Collection, source: str) -> None:
    """Refuses images that are not there; says how many have no hypotheses."""
    known = {str(image): None for image in known}
    unknown = [image for image in n_best if str(image) not in known]
    if unknown:
        raise UserError(
            f"{len(unknown)} of {len(n_best)} images of {options.hypotheses} are not in {source}: "
            f"{coco.first_few(unknown)}; it has {coco.first_few(known) or 'no images'}."
        )
    if silent := len(known) - len(n_best):
        logging.warning("%d images of %s have no hypotheses: left out.", silent, source)
