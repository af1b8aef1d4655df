"""The variants of the network, as rows that can be read side by side."""

import dataclasses
from typing import Literal

Place = Literal["start", "embedding", "multimodal"]


@dataclasses.dataclass(frozen=True)
class Wiring:
    """Which layers a variant has and what they are connected to.

    The image enters the multimodal layer (Eq. 3), word embedding layer II at every word, or the
    recurrence as its first input, "start". One V_I for two places needs places of one size, so the
    multimodal layer then takes the size of word embedding layer II.
    """

    embedding_layers: int = 2  # or 1, of the size of layer II
    words_to_multimodal: Literal["embedding_1", "embedding_2"] | None = "embedding_2"  # read by V_w
    image_to: tuple[Place, ...] = ("multimodal",)
    shared_image_weights: bool = False
    tied_softmax: bool = False  # to the transposed word embedding layer I
    multimodal_layer: bool = True  # or the softmax directly on the recurrent layer
    cell: str | None = None  # the only cell of the variant

    @property
    def recurrence_sees_image(self) -> bool:
        """Whether h = V_w w + V_r r depends on the image, so that no sentence can be read alone."""
        return bool({"start", "embedding"} & set(self.image_to))


_BOTH: tuple[Place, ...] = ("embedding", "multimodal")
WIRINGS: dict[str, Wiring] = {
    "mrnn": Wiring(),
    "rnn_base": Wiring(image_to=()),
    "no_emb_input": Wiring(words_to_multimodal=None),
    "one_layer_emb": Wiring(embedding_layers=1),
    "emb_one_input": Wiring(words_to_multimodal="embedding_1"),
    "vis_in_rnn": Wiring(image_to=("embedding",)),
    "vis_in_rnn_both": Wiring(image_to=_BOTH),
    "vis_in_rnn_both_shared": Wiring(image_to=_BOTH, shared_image_weights=True),
    "mrnn_shared": Wiring(tied_softmax=True),
    "nic": Wiring(1, None, ("start",), multimodal_layer=False, cell="lstm"),  # Show and Tell
}
