"""The inside of a model: its card, words that are alike, what it says without a picture."""

import functools
import json

import numpy as np

from mrnn_tf import pretrained, schema
from mrnn_tf.captioner import Captioner
from mrnn_tf.errors import UserError
from mrnn_tf.fingerprints import SHORT
from mrnn_tf.model.words import nearest_words
from serving.client import Client

_NEAREST = 12
_KEYS = (
    schema.MODEL_FINGERPRINT, schema.ENCODER_IDENTITY, schema.VOCABULARY_HASH, schema.STEP,
    schema.FEATURE_SIZE, schema.SETTINGS,
)  # fmt: skip
_NOT_HERE = "Only the model itself can tell: start the page with --model, beside --server."


class Inside:
    """Answers questions about the model; most of them need it in this process."""

    def __init__(self, client: Client, captioner: Captioner | None):
        self._client, self._captioner = client, captioner

    def card(self) -> dict:
        """What the model is, as sections of names and values."""
        info = self._client.info(schema.MODEL, _KEYS)
        try:
            settings = dict(json.loads(info[schema.SETTINGS] or "{}"))
        except (TypeError, ValueError):  # a server is not trusted
            settings = {}
        served = {
            "Encoder": info[schema.ENCODER_IDENTITY],
            "Features of an image": info[schema.FEATURE_SIZE],
            "Training steps": info[schema.STEP],
            "Fingerprint": info[schema.MODEL_FINGERPRINT][:SHORT],
        }
        sections = {"Model": served}
        if self._captioner is not None:
            sections = self._own(served)
        decoding = {name.replace("_", " ").capitalize(): value for name, value in settings.items()}
        return {"sections": {**sections, "Decoding": decoding}, "has_words": bool(self._captioner)}

    def _own(self, served: dict) -> dict:
        run, name = self._captioner.run, pretrained.label(self._captioner.model)
        card = pretrained.card(name) if name in pretrained.names() else None
        config = run.config
        model = {"Name": name if card else name.rstrip("/").rsplit("/", 1)[-1]}
        if card:
            model |= {"Description": card.description, "Terms": card.terms}
        vocabulary = {"Words": f"{len(run.vocabulary):,}"}
        vocabulary["Most frequent"] = ", ".join(run.vocabulary.words[4:14])
        sizes = {
            "Weights": f"{run.network.model.parameter_count:,}",
            "Word embedding": f"{config.model.embedding_1}, then {config.model.embedding_2}",
            "Recurrent layer": f"{config.model.recurrent} ({config.model.cell})",
            "Multimodal layer": config.model.multimodal,
            "Variant": config.model.variant,
        }
        training = {name: f"{value:.3f}" for name, value in (card.figures if card else {}).items()}
        training |= {
            "Objective": config.train.objective,
            "Epochs": config.train.epochs,
            "Batch size": config.train.batch_size,
            "Learning rate": config.train.learning_rate,
        }
        return {
            "Model": model | served,
            "Vocabulary": vocabulary,
            "Sizes": sizes,
            "Training": training,
        }

    def nearest(self, word: str) -> dict:
        """The words nearest to a word, by the distance of their embeddings."""
        word = word.strip().lower()
        if self._captioner is None:
            raise UserError(_NOT_HERE)
        if word not in self.vocabulary:
            raise UserError(f"The model does not know the word {word!r}.")
        run = self._captioner.run
        pairs = nearest_words(run.network.model, run.vocabulary, word, _NEAREST)
        return {"words": [{"text": text, "distance": distance} for text, distance in pairs]}

    def blank(self) -> dict:
        """What the model says of the mean training image: of no picture in particular."""
        if self._captioner is None:
            raise UserError(_NOT_HERE)
        mean = self._captioner.run.network.mean_features.numpy()
        [row] = self._client.beam(mean[np.newaxis])
        pairs = zip(row[schema.CAPTIONS], row[schema.LOG_PROBS], strict=True)
        return {"captions": [{"text": text, "log_prob": log_prob} for text, log_prob in pairs]}

    @functools.cached_property
    def vocabulary(self) -> frozenset[str]:
        """The words that the model knows."""
        return frozenset(self._captioner.run.vocabulary.words) - {*schema.RESERVED_WORDS}
