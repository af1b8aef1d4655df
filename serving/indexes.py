"""Where the indexes of folders are kept, for all programs of one person."""

import hashlib
import os
from pathlib import Path


def data_home() -> Path:
    """`$XDG_DATA_HOME/mrnn`."""
    home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(home, "mrnn")


def index_of(folder: str) -> Path:
    """The directory of a folder's index: a name for people, and a digest of its path."""
    path = os.path.realpath(folder)
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:12]
    return data_home() / "indexes" / f"{os.path.basename(path)}-{digest}"


def latest() -> Path | None:
    """The index that was written last; `None` where there is none."""
    from mrnn_tf.photo_index.catalogue import DATABASE_FILE  # needs TensorFlow

    indexes = (data_home() / "indexes").glob(f"*/{DATABASE_FILE}")
    newest = max(indexes, key=lambda path: path.stat().st_mtime, default=None)
    return newest.parent if newest else None
