"""What the explorer can be asked, as options whose fields are flags; without TensorFlow."""

import dataclasses

from mrnn_tf.config import Config, field
from mrnn_tf.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExplorerOptions(Config):
    """Who answers, which photographs are shown, and who may open the page."""

    server: str | None = field(None, "host and gRPC port of a server; default: this process")
    model: str | None = field(None, "pretrained model, or the path of one; default the first")
    photos: str | None = field(None, "folder of photographs; the page shows no file outside it")
    host: str = field("127.0.0.1", "address to listen on; 0.0.0.0 admits other machines")
    port: int = field(8600, "port of the page; 0 takes a free one", at_least=0, below=65536)
    token: str | None = field(None, "what whoever opens the page must know")
    max_picture_bytes: int = field(32 << 20, "bytes of the largest picture", at_least=1)
    open: bool = field(False, "open the page in the browser")

    def __post_init__(self):
        super().__post_init__()
        if self.token == "":  # as an unset variable of a shell gives it
            raise UserError("`token` is empty, and would admit everyone: name a secret, or none.")
