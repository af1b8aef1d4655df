"""The paper's claims, tested on our runs: each holds, does not hold, or cannot be told.

A claim says that one side is better than another by about so much. By the 95 % interval of the
difference (bootstrap over images, Student's t over seeds), with three seeds at least, it

- holds where the interval is above zero and the difference is at least half of what the paper
  reports,
- does not hold where the interval is below half of what the paper reports,
- cannot be told otherwise, nor where a second measure clearly says the opposite.
"""

import dataclasses
import math
from collections.abc import Callable

from mrnn_tf.config import ORIGINAL, REFINED, SAMPLE
from trainer.evaluation.captions import GREEDY
from trainer.evaluation.rerank import PAPER_ROWS
from trainer.evaluation.retrieval import IMAGE_TO_TEXT, KIROS
from trainer.experiments.results import BEAM, DatasetResults, RunResult
from trainer.experiments.significance import (
    Difference,
    PerImage,
    bootstrap,
    permutation_p,
    seed_count,
)
from trainer.options import CAPTIONS
from trainer.report import published

HOLDS, FAILS, OPEN = "holds", "does not hold", "cannot be told"
SEEDS = 3  # that a verdict needs
_ENOUGH = 0.5  # of the size that the paper reports
_MARGIN = 0.01  # of BLEU-1, what 512 units may bring without counting
_EXPLODES = 10.0  # the highest gradient norm of a run to its median
_NOVEL = 0.05  # around the share that the paper reports
_BOOTSTRAP = "bootstrap over {images:,} {unit} and {seeds}"

Measure = Callable[[RunResult], PerImage]


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What is found about a claim on a dataset."""

    claim: str
    dataset: str
    verdict: str
    figures: str  # in words, with the interval
    test: str
    seeds: int
    reported: str  # by the paper


@dataclasses.dataclass(frozen=True)
class Side:
    """The runs of a row under a measure."""

    row: str
    measure: Measure
    label: str

    def runs(self, results: DatasetResults) -> list[PerImage]:
        return [self.measure(run) for run in results.get(self.row)]


@dataclasses.dataclass(frozen=True)
class DifferenceClaim:
    """A claim that one side is better than the other by about `size`."""

    claim: str
    better: Side
    worse: Side
    metric: str
    size: float
    reported: str
    unit: str = "images"
    factor: float = 1.0  # that figures are shown with
    paired: bool = False  # both sides are measured on the same runs
    is_variant: bool = False  # CIDEr, by which it must not be the other way, and perplexity count

    def __call__(self, results: DatasetResults) -> Verdict:
        sides = [side.runs(results) for side in (self.better, self.worse)]
        if not all(sides):
            missing = self.better if not sides[0] else self.worse
            return self._verdict(results, OPEN, f"no finished run of `{missing.row}`", "none", 0)
        found = bootstrap(*sides, self.paired)
        verdict, reason = judge(found, self.size)
        test = _BOOTSTRAP.format(images=found.images, unit=self.unit, seeds=seed_count(found.seeds))
        test += f", p {_p(found.p)}"
        figures = self._figures(found) + reason
        if self.is_variant:
            runs = [results.get(side.row) for side in (self.better, self.worse)]
            other = bootstrap(*([run.cider() for run in side] for side in runs), False)
            figures += f"; CIDEr, beam of five: {_change(other)}"
            figures += "; perplexity {:.2f} and {:.2f}".format(*map(_perplexity, runs))
            if (other.high < 0 and verdict == HOLDS) or (other.low > 0 and verdict == FAILS):
                verdict, figures = OPEN, figures + "; the measures disagree"
        return self._verdict(results, verdict, figures, test, found.seeds)

    def _figures(self, found: Difference) -> str:
        first, second, low, high, value = (
            number * self.factor
            for number in (found.first, found.second, found.low, found.high, found.value)
        )
        digits = 3 if self.factor == 1.0 and abs(first) < 3 else 1
        return (
            f"{self.metric}: {self.better.label} {first:.{digits}f}, {self.worse.label} "
            f"{second:.{digits}f}; difference {value:+.{digits}f} "
            f"[{low:+.{digits}f}, {high:+.{digits}f}]"
        )

    def _verdict(self, results, verdict, figures, test, seeds) -> Verdict:
        return Verdict(self.claim, results.name, verdict, figures, test, seeds, self.reported)


def judge(found: Difference, size: float) -> tuple[str, str]:
    """The verdict on a difference that the paper reports as `size`, and what to add to it."""
    if found.seeds < SEEDS:
        return OPEN, f"; {found.seeds} of {SEEDS} seeds"
    enough = _ENOUGH * size
    if found.high < enough:
        return FAILS, "; less than half of what the paper reports" if found.low > 0 else ""
    return (HOLDS if found.low > 0 and found.value >= enough else OPEN), ""


def _change(found: Difference) -> str:
    return f"difference {found.value:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"


def exploding_gradients(results: DatasetResults) -> Verdict:
    """Whether the sigmoid and the scaled tanh have exploding gradients, and ReLU has none."""
    claim = "ReLU avoids exploding gradients where sigmoid and scaled tanh do not"
    reported = "sigmoid and scaled tanh explode easily"
    others = ("sigmoid", "scaled tanh")
    peaks = _gradient_peaks(
        results, {"mrnn": "ReLU", "sigmoid": "sigmoid", "scaled_tanh": "scaled tanh"}
    )
    seeds = min(map(len, peaks.values()))
    if not seeds:
        return Verdict(claim, results.name, OPEN, "runs are missing", "none", 0, reported)
    explode = {label: [peak > _EXPLODES for peak in values] for label, values in peaks.items()}
    verdict = OPEN
    if seeds >= SEEDS:
        if all(all(explode[label]) for label in others) and not any(explode["ReLU"]):
            verdict = HOLDS
        elif not any(any(explode[label]) for label in others) or all(explode["ReLU"]):
            verdict = FAILS
    logs = {label: [math.log(peak) for peak in values] for label, values in peaks.items()}
    p = max(permutation_p(logs[label], logs["ReLU"]) for label in others)
    test = f"permutations of the peaks of {seed_count(seeds)}: above ReLU's, p {_p(p)}"
    return Verdict(claim, results.name, verdict, _peak_figures(peaks), test, seeds, reported)


def small_rates(results: DatasetResults) -> Verdict:
    """Whether a small learning rate is better where the RNN sees the image."""
    claim = "with the image in the RNN the learning rate must be very small"
    reported = "very small, to avoid exploding gradients"
    usual, small = (results.get(row) for row in ("vis_in_rnn", "vis_in_rnn_slow"))
    if not usual or not small:
        return Verdict(claim, results.name, OPEN, "runs are missing", "none", 0, reported)
    found = bootstrap(*([run.cider() for run in side] for side in (small, usual)), False)
    rates = [runs[0].planned.settings[1].learning_rate for runs in (small, usual)]
    sides = zip((found.first, found.second), rates, strict=True)
    figures = ", ".join(f"{cider:.3f} at the rate {rate:g}" for cider, rate in sides)
    figures = f"CIDEr, beam of five: {figures}; {_change(found)}"
    figures += f"; perplexity {_perplexity(small):.2f} and {_perplexity(usual):.2f}"
    rows = ("vis_in_rnn", "vis_in_rnn_both", "vis_in_rnn_both_shared", "mrnn")
    figures += f"; at {rates[1]:g}, {_peak_figures(_gradient_peaks(results, {r: r for r in rows}))}"
    verdict, _ = judge(found, 0.0)
    test = _BOOTSTRAP.format(images=found.images, unit="images", seeds=seed_count(found.seeds))
    test += f", p {_p(found.p)}"
    return Verdict(claim, results.name, verdict, figures, test, found.seeds, reported)


def _gradient_peaks(results: DatasetResults, names: dict[str, str]) -> dict[str, list[float]]:
    """The peaks of the gradient's norm in the runs of some rows, by their labels."""
    return {
        label: [peak for run in results.get(row) if (peak := run.gradient_peak) is not None]
        for row, label in names.items()
    }


def _peak_figures(peaks: dict[str, list[float]]) -> str:
    shown = (
        f"{label} {_mean(values):.1f} ({sum(peak > _EXPLODES for peak in values)} of {len(values)} "
        f"runs above {_EXPLODES:g})"
        for label, values in peaks.items()
        if values
    )
    return f"highest gradient norm to the median one of a run: {', '.join(shown)}"


def enough_units(results: DatasetResults) -> Verdict:
    """Whether 512 units bring less than a margin."""
    claim = "256 units suffice"
    reported = "256 units where others have 300 to 1000"
    more, less = (results.get(row) for row in ("units_512", "mrnn"))
    if not more or not less:
        return Verdict(claim, results.name, OPEN, "runs are missing", "none", 0, reported)
    found = bootstrap(*([run.bleu(1, GREEDY) for run in side] for side in (more, less)), False)
    figures = (
        f"BLEU-1, greedy: 512 units {found.first:.3f}, 256 units {found.second:.3f}; difference "
        f"{found.value:+.3f} [{found.low:+.3f}, {found.high:+.3f}], of which {_MARGIN} would count"
    )
    verdict = OPEN
    if found.seeds >= SEEDS:
        verdict = HOLDS if found.high < _MARGIN else FAILS if found.low > _MARGIN else OPEN
    test = _BOOTSTRAP.format(images=found.images, unit="images", seeds=seed_count(found.seeds))
    return Verdict(claim, results.name, verdict, figures, test, found.seeds, reported)


def novel_captions(results: DatasetResults) -> Verdict:
    """Whether the share of captions that are no training captions is the paper's, on MS COCO."""
    [row] = published.rows("novel")
    wanted = float(row["values"]["novel"])
    claim, reported = "71 % of the captions are novel", f"{row['dataset']}: {wanted:.0%}"
    runs = results.get("mrnn")
    if not runs:
        return Verdict(claim, results.name, OPEN, "no finished run of `mrnn`", "none", 0, reported)
    shares = [run.scores[CAPTIONS][GREEDY]["novel"] for run in runs]
    images = runs[0].scores[CAPTIONS][GREEDY]["images"]
    share = _mean(shares)
    error = 1.96 * math.sqrt(share * (1 - share) / images)
    beam = _mean([run.scores[CAPTIONS][BEAM]["novel"] for run in runs])
    figures = f"greedy {share:.1%} ± {error:.1%}, beam of five {beam:.1%}"
    verdict = OPEN
    if not published.is_same(results.name, row["dataset"]):
        figures += f"; the paper's share is of {row['dataset']}"
    elif len(runs) >= SEEDS:
        low, high = share - error, share + error
        if wanted - _NOVEL <= low and high <= wanted + _NOVEL:
            verdict = HOLDS
        elif high < wanted - _NOVEL or low > wanted + _NOVEL:
            verdict = FAILS
    test = f"95 % interval of a share of {images:,} images"
    return Verdict(claim, results.name, verdict, figures, test, len(runs), reported)


def _bleu(order: int, decoding: str) -> Measure:
    return lambda run: run.bleu(order, decoding)


def _cider(decoding: str) -> Measure:
    return lambda run: run.cider(decoding)


def _recall(normaliser: str) -> Measure:
    return lambda run: run.recall(f"{IMAGE_TO_TEXT}, {normaliser}", 1)


def _agreement(features: str) -> Measure:
    return lambda run: run.agreement(features)


def _variant(claim: str, row: str, label: str, size: float, reported: str) -> DifferenceClaim:
    """A claim that the m-RNN beats a variant on BLEU-1, with the paper's greedy decoding."""
    measure = _bleu(1, GREEDY)
    sides = Side("mrnn", measure, "m-RNN"), Side(row, measure, label)
    return DifferenceClaim(claim, *sides, "BLEU-1, greedy", size, reported, is_variant=True)


def _within(
    claim: str, row: str, sides: dict[str, Measure], metric: str, **more
) -> DifferenceClaim:
    """A claim that one measure of the same runs is higher than another."""
    better, worse = (Side(row, measure, label) for label, measure in sides.items())
    return DifferenceClaim(claim, better, worse, metric, paired=True, **more)


IN_RNN = "the image in the multimodal layer beats the image in the RNN by about 5 % B-1"
CLAIMS: tuple[Callable[[DatasetResults], Verdict], ...] = (
    _variant(
        "the image makes captions better", "rnn_base", "RNN-Base",
        0.175, "IAPR TC-12: .482 against .307",
    ),
    _variant(
        "two word embedding layers help", "one_layer_emb", "one layer",
        0.006, "Flickr30K: .600 against .594",
    ),
    _variant(
        "word layer II into the multimodal layer helps", "no_emb_input", "without it",
        0.008, "Flickr30K: .600 against .592",
    ),
    _variant(
        "word layer II is the one to connect, not layer I", "emb_one_input", "layer I",
        0.010, "Flickr30K: .600 against .590",
    ),
    _variant(
        f"{IN_RNN} (alone)", "vis_in_rnn", "in the RNN", 0.05, "Flickr30K: .600 against .466",
    ),
    _variant(
        f"{IN_RNN} (both)", "vis_in_rnn_both", "in both", 0.05, "Flickr30K: .600 against .546",
    ),
    _variant(
        f"{IN_RNN} (both, shared)", "vis_in_rnn_both_shared", "in both, shared",
        0.05, "Flickr30K: .600 against .478",
    ),
    small_rates,
    exploding_gradients,
    _within(
        "the normalised probability beats Kiros' normaliser", "mrnn",
        {"normalised probability": _recall(SAMPLE), "Kiros'": _recall(KIROS)},
        "image to text R@1", size=1.0, reported="much better, without figures",
    ),
    _within(
        "refined features find better neighbours", "mrnn",
        {REFINED: _agreement(REFINED), ORIGINAL: _agreement(ORIGINAL)},
        "CIDEr-D of neighbours' captions and references", size=0.0,
        reported="richer and more accurate, by examples",
    ),
    _within(
        "reranking adds about 3 B-4", "mrnn_shared",
        {"reranked by BLEU": _bleu(4, PAPER_ROWS["bleu"]), "beam of five": _bleu(4, BEAM)},
        "BLEU-4 x 100", size=0.025, reported="MS COCO val: 28.0 to 30.5, or 3.5 by its text",
        factor=100.0,
    ),
    _within(
        "reranking adds about 9 CIDEr", "mrnn_shared",
        {"reranked by CIDEr": _cider(PAPER_ROWS["cider"]), "beam of five": _cider(BEAM)},
        "CIDEr x 100", size=0.096, reported="MS COCO val: 84.2 to 93.8", factor=100.0,
    ),
    enough_units,
    novel_captions,
    DifferenceClaim(
        "the m-RNN with 256 units beats NIC with an LSTM of 512",
        Side("mrnn", _bleu(4, BEAM), "m-RNN"), Side("nic", _bleu(4, BEAM), "NIC"),
        "BLEU-4, beam of five", 0.0, "Flickr30K: better in most figures, with other features",
    ),
)  # fmt: skip


def verdicts(results: DatasetResults) -> list[Verdict]:
    """The verdicts on all claims by the runs on a dataset."""
    return [claim(results) for claim in CLAIMS]


def _perplexity(runs: list[RunResult]) -> float:
    return _mean([run.scores[CAPTIONS][BEAM]["perplexity"] for run in runs])


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _p(value: float) -> str:
    return "below .001" if value < 0.001 else f"{value:.3f}".lstrip("0") or "0"
