"""An image from wherever it is: the bytes of an upright photograph, or a vector of features.

The module needs no TensorFlow, so that a client may use it.
"""

import io
import os
from pathlib import Path

import numpy as np
import PIL.Image
from PIL import ExifTags, ImageOps

from mrnn_tf.errors import UserError

FORMATS = ("JPEG", "PNG", "GIF", "BMP")  # those that the model decodes
_JPEG_QUALITY = 95

Photo = str | os.PathLike | bytes | PIL.Image.Image | np.ndarray


def load(photo: Photo) -> bytes | np.ndarray:
    """The bytes of an image that the model decodes, or features float32 [D].

    Args:
        photo: the path of an image or of a `.npy` file of features, the bytes of an image, a PIL
            image, pixels [height, width, 3] or [height, width] of type uint8, or features [D].

    Raises:
        OSError: where there is no such file, or it may not be read.
        UserError: where its content is neither.
    """
    match photo:
        case str() | os.PathLike():
            path = Path(photo)
            return (
                _features_file(path) if path.suffix == ".npy" else _upright(path.read_bytes(), path)
            )
        case bytes():
            return _upright(photo, "the image")
        case PIL.Image.Image():
            return _png(ImageOps.exif_transpose(photo))
        case np.ndarray() if photo.dtype == np.uint8 and photo.ndim in (2, 3):
            return _png(PIL.Image.fromarray(photo))
        case np.ndarray() if photo.ndim == 1 and photo.dtype.kind in "fiu":
            return _finite(photo, "the features")
    form = f"{photo.dtype} {list(photo.shape)}" if isinstance(photo, np.ndarray) else type(photo)
    raise UserError(
        "An image is a path, bytes, a PIL image, uint8 pixels [height, width, 3], or features "
        f"[D]; received {form}."
    )


def _features_file(path: Path) -> np.ndarray:
    try:
        features = np.load(path, allow_pickle=False)
    except (ValueError, EOFError):
        raise UserError(f"{path}: no array as numpy.save writes it.") from None
    return _finite(features, path)


def _finite(features: np.ndarray, source: object) -> np.ndarray:
    if features.ndim != 1 or features.dtype.kind not in "fiu" or not np.isfinite(features).all():
        raise UserError(
            f"{source}: features are finite numbers [D], and these are {features.dtype} "
            f"{list(features.shape)}{' with NaN or infinity' if features.ndim == 1 else ''}."
        )
    return features.astype(np.float32)


def _upright(content: bytes, source: object) -> bytes:
    """The bytes, rotated as the EXIF orientation says."""
    try:
        with PIL.Image.open(io.BytesIO(content), formats=FORMATS) as image:
            image.load()
            if image.getexif().get(ExifTags.Base.Orientation, 1) == 1:
                return content
            rotated = io.BytesIO()
            ImageOps.exif_transpose(image).save(
                rotated, "PNG" if image.format == "PNG" else "JPEG", quality=_JPEG_QUALITY
            )
            return rotated.getvalue()
    except (OSError, SyntaxError, PIL.Image.DecompressionBombError) as error:
        is_image = not isinstance(error, PIL.UnidentifiedImageError)
        what = "a damaged image" if is_image else "no image"
        raise UserError(f"{source}: {what}; JPEG, PNG, GIF and BMP are understood.") from None


def _png(image: PIL.Image.Image) -> bytes:
    content = io.BytesIO()
    image.convert("RGB").save(content, "PNG", compress_level=1)
    return content.getvalue()
