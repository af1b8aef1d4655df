"""Search among images of a vector database."""

from collections.abc import Sequence

from mrnn_tf import schema
from mrnn_tf.captioner import Captioner
from mrnn_tf.errors import UserError
from mrnn_tf.photo_index import Match, PhotoIndex, RerankedCaption
from mrnn_tf.photos import Photo
from mrnn_tf.retrieval import milvus, stored


class StoredPhotoIndex(PhotoIndex):
    """Finds images of a vector database by sentences: see `PhotoIndex.load`.

    The database chooses a shortlist, and the captioner's model scores it exactly.
    """

    def __init__(self, address: str, captioner: Captioner | None):
        if captioner is None:
            raise UserError(f"`captioner` is required: {address} holds images, and no model.")
        self._captioner, self._store = captioner, milvus.MilvusStore.open(address)
        try:
            self._store.check(captioner.fingerprints)
        except UserError:
            self.close()
            raise

    def search(
        self,
        sentences: str | Sequence[str],
        k: int | None = None,
        *,
        filter: str = "",
        shortlist: int = 0,
    ) -> list[Match] | list[list[Match]]:
        """As `PhotoIndex.search`, among the images that a filter lets through.

        A filter is an expression of Milvus over metadata, such as `album == "2024"`. By default the
        `shortlist` that is scored exactly is as long as the number of images asks for.
        """
        queries = [sentences] if isinstance(sentences, str) else list(sentences)
        predict, k = self._captioner.predict, stored.K if k is None else k
        hits = stored.search(self._store, predict, queries, k, filter, shortlist)
        results = [[Match(*hit) for hit in own] for own in hits]
        return results[0] if isinstance(sentences, str) else results

    def close(self) -> None:
        """Ends the connection; a local file can then be opened by another process."""
        self._store.close()

    def _about(self, images, signature: str, result: type, k: int | None) -> list:
        raise UserError(
            "A vector database is searched by sentences only: for the rest load an index that "
            "`python -m export.index --output` made."
        )

    def rerank(self, images: Photo | Sequence[Photo], k: int | None = None) -> list:
        """Refused: the captions of similar images are in an index only."""
        return self._about(images, schema.CAPTION_RERANKED, RerankedCaption, k)

    def search_prefix(self, prefix: str, k: int | None = None) -> list[Match]:
        """Refused: a vector database takes whole sentences."""
        return self._about(prefix, schema.SEARCH_PREFIX, Match, k)
