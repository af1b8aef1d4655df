"""The flags of `export.index` that are about a vector database."""

import dataclasses

from mrnn_tf.config import Config, field
from mrnn_tf.errors import UserError
from mrnn_tf.retrieval.milvus import EXACT, INDEX_TYPES

MILVUS = "milvus"
# What a vector database holds is searched by the model itself, and has no versions.
_OF_A_SERVABLE = ("output", "reference_data", "version", "append_to", "sentences", "sample", "seed")


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoreOptions(Config):
    """A vector database to write images into, instead of a servable."""

    store: str | None = field(None, "a vector database instead of a servable", choices=(MILVUS,))
    uri: str | None = field(
        None, "of `store`: a local file FILE.db, or a server http://HOST:19530; a collection may "
        "follow after #"
    )  # fmt: skip
    metadata: str | None = field(None, "of `store`: JSON lines with what filters may use of images")
    index_type: str = field(
        EXACT, "of `store`: FLAT is exact, AUTOINDEX approximate", choices=INDEX_TYPES
    )

    def __post_init__(self):
        super().__post_init__()
        if not self.store:
            for name in ("uri", "metadata"):
                if getattr(self, name) is not None:
                    raise UserError(f"`{name}` goes with `store`, which was not given.")
            return
        for name in _OF_A_SERVABLE:
            if getattr(self, name) is not None:
                raise UserError(f"`{name}` is for an index that is served: `store` takes none.")
        if not self.uri:
            raise UserError("`uri` is required: where `store` is.")
        if not (self.data or self.delete):
            raise UserError("`data` is required (--help shows an example).")
        for name in ("metadata", "splits"):
            if getattr(self, name) is not None and not self.data:
                raise UserError(f"`{name}` goes with `data`, which was not given.")
