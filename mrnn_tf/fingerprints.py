"""Whether a model and an index belong together, by what they say of themselves."""

from collections.abc import Mapping

from mrnn_tf import schema
from mrnn_tf.errors import UserError

COMPARED = (schema.MODEL_FINGERPRINT, schema.ENCODER_IDENTITY, schema.VOCABULARY_HASH)
SHORT = 12  # characters of a fingerprint that people read


def check_together(model: Mapping[str, str], index: Mapping[str, str]) -> None:
    """Refuses an index of another model, encoder or vocabulary.

    Both say what the signature `model_info` says; those of earlier releases say nothing and pass.
    """
    for key in COMPARED:
        own, wanted = model.get(key), index.get(key)
        if own and wanted and own != wanted:
            if key != schema.ENCODER_IDENTITY:
                own, wanted = own[:SHORT], wanted[:SHORT]
            raise UserError(
                f"The index was made with the {key} {wanted}, but the model's is {own}: use the "
                "model that the index was made with, or make the index again with this one."
            )
