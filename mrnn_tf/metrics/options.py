"""What mrnn_tf.metrics can be asked, as options whose fields are flags; without TensorFlow."""

import dataclasses

from mrnn_tf.config import REQUIRED, TOKENIZERS, Config, field


@dataclasses.dataclass(frozen=True, kw_only=True)
class MetricsOptions(Config):
    """What to score, and by which words."""

    references: str = field(REQUIRED, "file with the reference captions")
    results: str = field(REQUIRED, "file with the captions to score")
    tokenizer: str = field(
        "mrnn",
        "ours, or that of COCO's own tools (needs Java), or nltk's, which is near to it",
        choices=TOKENIZERS,
    )
    output: str | None = field(None, "file for all scores, also those of each image")
    training: str | None = field(None, "like `references`; adds the share of captions not in it")
    meteor: bool = field(True, "run METEOR where there is Java: half a minute more")
