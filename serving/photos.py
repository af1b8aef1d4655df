"""What a request takes from a file: the bytes of an upright photo, or features."""

import io
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image, ImageOps

from mrnn_tf.errors import UserError

FORMATS = ("JPEG", "PNG", "GIF", "BMP")  # those that the model decodes
_JPEG_QUALITY = 95


def read(path: str) -> bytes | np.ndarray:
    """The features [D] of a `.npy` file, or the bytes of any other, which must be an image.

    Raises:
        OSError: where there is no such file, or it may not be read.
        ValueError: where its content is neither.
    """
    return _features(path) if Path(path).suffix == ".npy" else _upright(path)


def _features(path: str) -> np.ndarray:
    try:
        features = np.load(path, allow_pickle=False)
    except (ValueError, EOFError):
        raise UserError(f"{path}: no array as numpy.save writes it.") from None
    if features.ndim != 1 or features.dtype.kind not in "fiu" or not np.isfinite(features).all():
        raise UserError(
            f"{path}: features are finite numbers [D], and these are {features.dtype} "
            f"{list(features.shape)}."
        )
    return features.astype(np.float32)


def _upright(path: str) -> bytes:
    content = Path(path).read_bytes()
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            image.load()
            if image.getexif().get(ExifTags.Base.Orientation, 1) == 1:
                return content
            rotated = io.BytesIO()
            ImageOps.exif_transpose(image).save(
                rotated, "PNG" if image.format == "PNG" else "JPEG", quality=_JPEG_QUALITY
            )
            return rotated.getvalue()
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        what = "no image" if isinstance(error, Image.UnidentifiedImageError) else "a damaged image"
        raise UserError(f"{path}: {what}; JPEG, PNG, GIF and BMP are understood.") from None
