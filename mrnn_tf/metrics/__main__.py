"""Scores captions against references: BLEU, CIDEr-D, ROUGE-L and METEOR.

Example, both files in COCO's formats:

    python -m mrnn_tf.metrics --references captions.json --results results.json \\
        --output scores.json

references: {"images": [{"id": 1}], "annotations": [{"image_id": 1, "caption": "a dog"}]}
results:    [{"image_id": 1, "caption": "a dog"}]

Every image that has references needs exactly one result, and every result an image of the
references: anything else is an error. An empty caption is valid and scores 0. References without
words do not count, and images left without references are not scored. CIDEr-D weighs words by
their frequency in the references given: compare figures of the same references only. METEOR is
left out where there is no Java; no other figure depends on Java unless --tokenizer ptb asks for it.
--tokenizer treebank is the nearest to ptb without Java: nltk's.
"""

import dataclasses
import itertools

from mrnn_tf import files, program
from mrnn_tf.config import REQUIRED, Config, field
from mrnn_tf.metrics import captions, coco

_ROWS = {
    "images": ("images", ","),
    "tokenizer": ("tokenizer", ""),
    **{f"bleu_{n}": (f"BLEU-{n}", ".4f") for n in (1, 2, 3, 4)},
    "cider": ("CIDEr-D", ".4f"),
    "rouge_l": ("ROUGE-L", ".4f"),
    "meteor": ("METEOR", ".4f"),
    "novel": ("novel captions", ".1%"),
    "distinct_words": ("distinct words", ","),
    "mean_length": ("words a caption", ".2f"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class MetricsOptions(Config):
    """What to score, and by which words."""

    references: str = field(REQUIRED, "file with the reference captions")
    results: str = field(REQUIRED, "file with the captions to score")
    tokenizer: str = field(
        "mrnn",
        "ours, or that of COCO's own tools (needs Java), or nltk's, which is near to it",
        choices=captions.TOKENIZERS,
    )
    output: str | None = field(None, "file for all scores, also those of each image")
    training: str | None = field(None, "like `references`; adds the share of captions not in it")
    meteor: bool = field(True, "run METEOR where there is Java: half a minute more")


def score(options: MetricsOptions) -> captions.Scores:
    """Prints the scores, and writes them where asked to."""
    references = coco.read_references(options.references)
    results = coco.read_results(options.results)
    training = None
    if options.training:
        training = itertools.chain.from_iterable(coco.read_references(options.training).values())
    scores = captions.evaluate(references, results, options.tokenizer, training, options.meteor)
    for key, (label, form) in _ROWS.items():
        if key in scores.overall:
            print(f"{label:16}{scores.overall[key]:>10{form}}")
    if options.output:
        files.write_json(options.output, dataclasses.asdict(scores))
        print(f"scores of each image: {options.output}")
    return scores


if __name__ == "__main__":
    program.main(score, MetricsOptions)
