"""The variants of the network, as rows that can be read side by side."""

import dataclasses
from typing import Literal

Place = Literal["start", "embedding", "multimodal"]


@dataclasses.dataclass(frozen=True)
class Wiring:
    """Which layers a variant has and what they are connected to.

    Args:
        embedding_layers: int, 2, or 1 for a single layer of the size of layer II.
        words_to_multimodal: string, the embedding layer that V_w reads, or `None`.
        image_to: tuple of places where the image enters: `"multimodal"` is Eq. 3, `"embedding"`
            word embedding layer II at every word, `"start"` the recurrence, as its first input.
        shared_image_weights: bool, one V_I for all places. They need equal sizes, so the
            multimodal layer takes the size of word embedding layer II.
        tied_softmax: bool, the softmax uses the transposed word embedding layer I.
        multimodal_layer: bool, `False` puts the softmax directly on the recurrent layer.
        cell: string, the only cell of this variant, or `None` for the configured one.
    """

    embedding_layers: int = 2
    words_to_multimodal: Literal["embedding_1", "embedding_2"] | None = "embedding_2"
    image_to: tuple[Place, ...] = ("multimodal",)
    shared_image_weights: bool = False
    tied_softmax: bool = False
    multimodal_layer: bool = True
    cell: str | None = None

    @property
    def recurrence_sees_image(self) -> bool:
        """Whether h = V_w w + V_r r depends on the image, so that no sentence can be read alone."""
        return bool({"start", "embedding"} & set(self.image_to))


WIRINGS: dict[str, Wiring] = {
    "mrnn": Wiring(),
    "rnn_base": Wiring(image_to=()),
    "no_emb_input": Wiring(words_to_multimodal=None),
    "one_layer_emb": Wiring(embedding_layers=1),
    "emb_one_input": Wiring(words_to_multimodal="embedding_1"),
    "vis_in_rnn": Wiring(image_to=("embedding",)),
    "vis_in_rnn_both": Wiring(image_to=("embedding", "multimodal")),
    "vis_in_rnn_both_shared": Wiring(
        image_to=("embedding", "multimodal"), shared_image_weights=True
    ),
    "mrnn_shared": Wiring(tied_softmax=True),
    # Show and Tell (Vinyals et al. 2015).
    "nic": Wiring(
        embedding_layers=1,
        words_to_multimodal=None,
        image_to=("start",),
        multimodal_layer=False,
        cell="lstm",
    ),
}
