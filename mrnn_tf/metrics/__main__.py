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
"""

import dataclasses

from absl import flags

from mrnn_tf import files, program
from mrnn_tf.errors import UserError
from mrnn_tf.metrics import captions, coco

_REFERENCES = flags.DEFINE_string("references", None, "File with the captions of people.")
_RESULTS = flags.DEFINE_string("results", None, "File with the captions to score.")
_TOKENIZER = flags.DEFINE_enum(
    "tokenizer", "mrnn", captions.TOKENIZERS, "Ours, or that of COCO's own tools (needs Java)."
)
_OUTPUT = flags.DEFINE_string("output", None, "File for all scores, also those of each image.")
_TRAINING = flags.DEFINE_string(
    "training", None, "File like --references; adds the share of captions that are not in it."
)
_METEOR = flags.DEFINE_bool("meteor", True, "Run METEOR where there is Java: half a minute more.")

_ROWS = {
    "images": ("images", ","),
    "tokenizer": ("tokenizer", ""),
    "bleu_1": ("BLEU-1", ".4f"),
    "bleu_2": ("BLEU-2", ".4f"),
    "bleu_3": ("BLEU-3", ".4f"),
    "bleu_4": ("BLEU-4", ".4f"),
    "cider": ("CIDEr-D", ".4f"),
    "rouge_l": ("ROUGE-L", ".4f"),
    "meteor": ("METEOR", ".4f"),
    "novel": ("novel captions", ".1%"),
    "distinct_words": ("distinct words", ","),
    "mean_length": ("words a caption", ".2f"),
}


def main(_: list[str]) -> None:
    for flag in (_REFERENCES, _RESULTS):
        if flag.value is None:
            raise UserError(f"--{flag.name} is required (--help shows an example).")
    references = coco.read_references(_REFERENCES.value)
    results = coco.read_results(_RESULTS.value)
    training = None
    if _TRAINING.value:
        seen = coco.read_references(_TRAINING.value)
        training = [caption for some in seen.values() for caption in some]

    scores = captions.evaluate(
        references, results, _TOKENIZER.value, training, meteor=_METEOR.value
    )
    for key, (label, form) in _ROWS.items():
        if key in scores.overall:
            print(f"{label:16}{scores.overall[key]:>10{form}}")
    if _OUTPUT.value:
        files.write_json(_OUTPUT.value, dataclasses.asdict(scores))
        print(f"scores of each image: {_OUTPUT.value}")


if __name__ == "__main__":
    program.run(main)
