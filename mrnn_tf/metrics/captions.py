"""Caption metrics, as pycocoevalcap computes them, over the words of one named tokeniser.

- BLEU is that of the whole set, with the closest reference length.
- CIDEr is CIDEr-D. Its document frequencies come from the references given, so figures of
  different sets do not compare, and a single image always has 0.
- A reference without words is no reference, and an image without references is not scored.
- An empty result is valid: it scores 0.
"""

import dataclasses
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence

import tensorflow as tf
from absl import logging
from pycocoevalcap.bleu.bleu import Bleu
from pycocoevalcap.cider.cider import Cider
from pycocoevalcap.meteor.meteor import Meteor
from pycocoevalcap.rouge.rouge import Rouge
from pycocoevalcap.tokenizer import ptbtokenizer

from mrnn_tf import text
from mrnn_tf.config import TOKENIZERS
from mrnn_tf.errors import UserError
from mrnn_tf.metrics.coco import ImageId, first_few

CaptionLists = Mapping[ImageId, Sequence[str]]
Words = dict[ImageId, list[str]]  # tokenised captions
_PUNCTUATION = frozenset(ptbtokenizer.PUNCTUATIONS)  # what COCO drops


@dataclasses.dataclass(frozen=True)
class Scores:
    """What captions are worth, all together and one by one.

    `overall` holds `bleu_1` to `bleu_4`, `cider`, `rouge_l`, `meteor` where it ran, `novel` where
    training captions were given, `distinct_words`, `mean_length`, `images` and `tokenizer`.
    """

    overall: dict[str, float | int | str]
    per_image: dict[ImageId, dict[str, float]]  # cider, rouge_l and, where it ran, meteor


def evaluate(
    references: CaptionLists,
    results: Mapping[ImageId, str],
    tokenizer: str = "mrnn",
    training: Iterable[str] | None = None,
    meteor: bool = True,
) -> Scores:
    """Compares one caption an image with its raw reference captions; ids match as text.

    Args:
        tokenizer: "mrnn" for the tokeniser of this package, "ptb" for that of COCO (Java),
            "treebank" for nltk's, the nearest to it without Java.
        training: raw captions; `novel` is the share of results not among them.
        meteor: whether to run METEOR where there is Java. It takes long to start.
    """
    wanted, compared = _pair(references, results, tokenizer)
    captions = [caption for [caption] in compared.values()]
    bleu, _ = Bleu(4).compute_score(wanted, compared, verbose=0)
    measured = {
        "cider": Cider().compute_score(wanted, compared),
        "rouge_l": Rouge().compute_score(wanted, compared),
    }
    if meteor and (scores := _meteor(wanted, compared)):
        measured["meteor"] = scores

    overall = {f"bleu_{n}": float(value) for n, value in enumerate(bleu, start=1)}
    overall |= {metric: float(mean) for metric, (mean, _) in measured.items()}
    if training is not None:
        known = set(tokenize(training, tokenizer))
        overall["novel"] = sum(caption not in known for caption in captions) / len(captions)
    words = [word for caption in captions for word in caption.split()]
    overall |= {"distinct_words": len(set(words)), "mean_length": len(words) / len(captions)}
    overall |= {"images": len(captions), "tokenizer": tokenizer}
    per_image = {
        image: {metric: float(values[row]) for metric, (_, values) in measured.items()}
        for row, image in enumerate(wanted)
    }
    return Scores(overall, per_image)


def tokenize(captions: Iterable[str], tokenizer: str = "mrnn") -> list[str]:
    """The words of each caption, joined by spaces."""
    if tokenizer not in TOKENIZERS:
        raise UserError(f"`tokenizer` must be one of {', '.join(TOKENIZERS)}, not {tokenizer!r}.")
    captions = [caption.encode(errors="replace") for caption in captions]  # JSON may cut a pair
    if tokenizer != "mrnn":
        lines = [" ".join(caption.decode().split()) for caption in captions]
        words = _ptb_words(lines) if tokenizer == "ptb" else _treebank_words(lines)
        return [" ".join(word for word in line if word not in _PUNCTUATION) for line in words]
    words = text.tokenized(tf.constant(captions, tf.string, [len(captions)]))
    return [caption.decode() for caption in words.numpy()]


def tokenize_lists(lists: CaptionLists, tokenizer: str = "mrnn") -> Words:
    """The words of the captions of every image, all in one call of the tokeniser."""
    words = iter(tokenize(itertools.chain.from_iterable(lists.values()), tokenizer))
    return {image: list(itertools.islice(words, len(texts))) for image, texts in lists.items()}


def _pair(
    references: CaptionLists, results: Mapping[ImageId, str], tokenizer: str
) -> tuple[Words, Words]:
    """Tokenised references and results of the images to score, in pycocoevalcap's form."""
    ids, given = _by_text(references, "references"), _by_text(results, "results")
    unknown = [key for key in given if key not in ids]
    if unknown:
        raise UserError(
            f"{len(unknown)} of {len(given)} results are of images that the references do not "
            f"have: {first_few(unknown)}; the references have {first_few(ids) or 'no images'}."
        )
    words = tokenize_lists(references, tokenizer)
    wanted = {image: list(filter(None, texts)) for image, texts in words.items() if any(texts)}
    if not wanted:
        raise UserError(f"None of {len(ids)} images has a reference with a word in it.")
    if len(wanted) < len(ids):
        logging.warning("%d images have no references: not scored.", len(ids) - len(wanted))
    missing = [image for image in wanted if str(image) not in given]
    if missing:
        raise UserError(
            f"{len(missing)} of {len(wanted)} images with references have no result: "
            f"{first_few(missing)}; an image without a caption needs an empty one."
        )
    captions = tokenize([results[given[str(image)]] for image in wanted], tokenizer)
    return wanted, {image: [caption] for image, caption in zip(wanted, captions, strict=True)}


def _ptb_words(lines: list[str]) -> list[list[str]]:
    """What pycocoevalcap's PTBTokenizer makes of captions, with their punctuation.

    Its class would give words to the wrong images where a caption holds a line break other than
    "\\n", write into the package's folder and go on where Java failed; only its jar is used.
    """
    if not shutil.which("java"):
        raise UserError("The tokeniser ptb needs `java`: install Java, or use treebank or mrnn.")
    folder = os.path.dirname(ptbtokenizer.__file__)
    jar = os.path.join(folder, ptbtokenizer.STANFORD_CORENLP_3_4_1_JAR)
    command = ["java", "-cp", jar, "edu.stanford.nlp.process.PTBTokenizer"]
    command += ["-preserveLines", "-lowerCase", "-encoding", "UTF-8"]
    content = "".join(f"{line}\n" for line in lines).encode()
    done = subprocess.run(command, input=content, capture_output=True)
    words = done.stdout.decode().split("\n")[:-1]
    if done.returncode or len(words) != len(lines):
        raise UserError(f"The tokeniser ptb failed: {_last_line(done.stderr)}.")
    return [line.split(" ") for line in words]


def _treebank_words(lines: list[str]) -> list[list[str]]:
    """nltk's Treebank tokeniser, which needs no files, with Stanford's names of brackets."""
    from nltk.tokenize import TreebankWordTokenizer  # not above: nltk takes half a second

    tokenize = TreebankWordTokenizer().tokenize
    words = (tokenize(line, convert_parentheses=True) for line in lines)
    return [[word.lower() for word in line] for line in words]


def _meteor(references: Words, results: Words) -> tuple[float, list[float]] | None:
    if not shutil.which("java"):
        logging.warning("METEOR is left out: there is no `java` here.")
        return None
    scorer = Meteor()
    try:
        scores = scorer.compute_score(references, results)
    except (OSError, ValueError):  # a broken pipe, or an answer that is not a score
        scores = None
    finally:
        scorer.meteor_p.kill()
        _, complaint = scorer.meteor_p.communicate()
        if scorer.lock.locked():
            scorer.lock.release()  # or its `__del__` would wait for ever
    if scores is None:
        logging.warning("METEOR is left out: its Java program failed: %s", _last_line(complaint))
    return scores


def _last_line(complaint: bytes) -> str:
    return (complaint.decode(errors="replace").strip().splitlines() or ["it gave no reason"])[-1]


def _by_text(captions: Mapping[ImageId, object], role: str) -> dict[str, ImageId]:
    """Ids by their text: files disagree on whether an id is a number."""
    names = {str(image_id): image_id for image_id in captions}
    if len(names) < len(captions):
        raise UserError(f"The {role} have an id both as a number and as a text: use one form.")
    return names
