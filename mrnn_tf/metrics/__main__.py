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

from mrnn_tf import program
from mrnn_tf.metrics.options import MetricsOptions

if __name__ == "__main__":  # before all other imports: --help needs no TensorFlow
    program.main("mrnn_tf.metrics.__main__:score", MetricsOptions)

import dataclasses
import itertools

from mrnn_tf import files
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
