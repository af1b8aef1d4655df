"""An image from wherever it is: bytes that the model decodes, or a vector of features.

The module needs no TensorFlow, so that a client may use it.
"""

import contextlib
import io
import os
import stat
import struct
from pathlib import Path

import numpy as np
import PIL.ExifTags
import PIL.Image
from PIL import ImageOps

from mrnn_tf import arrays
from mrnn_tf.config import MAX_PIXELS
from mrnn_tf.errors import UserError

FORMATS = ("JPEG", "PNG", "GIF", "BMP")  # those that the model decodes
_SENT = {*FORMATS, "MPO"}  # Pillow's name of a JPEG with more pictures behind it, as phones make
_READABLE = [*FORMATS, "WEBP"]
with contextlib.suppress(ImportError):  # the extra `heic`
    import pillow_heif

    pillow_heif.register_heif_opener()
    _READABLE.append("HEIF")
SUFFIXES = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp")  # of files that may be photographs
if "HEIF" in _READABLE:
    SUFFIXES += (".heic", ".heif")
_UNDERSTOOD = "JPEG, PNG, GIF, BMP, WebP and, with the package pillow-heif, HEIC are understood"
_JPEG_QUALITY, _PREVIEW_QUALITY = 95, 85
_SMALLEST_SIDE = 16

MAX_FILE_BYTES = 1 << 30

# What Pillow and its plugins raise on damaged files; warnings where they are errors.
_DAMAGED = (
    ArithmeticError, AttributeError, EOFError, LookupError, MemoryError, OSError, RuntimeError,
    SyntaxError, TypeError, ValueError, Warning, struct.error, PIL.Image.DecompressionBombError,
)  # fmt: skip

Photo = str | os.PathLike | bytes | PIL.Image.Image | np.ndarray


def load(photo: Photo, max_bytes: int | None = None) -> bytes | np.ndarray:
    """The bytes of an image that the model decodes, or features float32 [D].

    The bytes of JPEG, PNG, GIF and BMP are not changed, since the model itself turns a photograph
    upright; WebP, HEIC and a BMP with colours of a palette or compression become JPEG.

    Args:
        photo: the path of an image or of a `.npy` file of features, the bytes of an image, a PIL
            image, pixels [height, width, 3] or [height, width] of type uint8, or features [D].
        max_bytes: the most bytes of an image; a larger one becomes a smaller JPEG.

    Raises:
        OSError: where there is no such file, or it may not be read.
        UserError: where its content is neither, or it is no file: a pipe or a device may never end.
    """
    match photo:
        case str() | os.PathLike():
            path = Path(photo)
            if path.suffix == ".npy":
                _check_file(path)
                return _features_file(path)
            return decodable(read(path), path, max_bytes)
        case bytes():
            return decodable(photo, "the image", max_bytes)
        case PIL.Image.Image():
            return decodable(_png(ImageOps.exif_transpose(photo)), "the image", max_bytes)
        case np.ndarray() if photo.dtype == np.uint8 and photo.ndim in (2, 3):
            return decodable(_png(PIL.Image.fromarray(photo)), "the image", max_bytes)
        case np.ndarray() if photo.ndim == 1 and photo.dtype.kind in "fiu":
            return _finite(photo, "the features")
    form = f"{photo.dtype} {list(photo.shape)}" if isinstance(photo, np.ndarray) else type(photo)
    raise UserError(
        "An image is a path, bytes, a PIL image, uint8 pixels [height, width, 3], or features "
        f"[D]; received {form}."
    )


def read(path: Path) -> bytes:
    """The content of a file; a pipe or a device is refused, since it may never end."""
    _check_file(path)
    return path.read_bytes()


def orientation(content: bytes) -> int:
    """The EXIF orientation of an image, 1 to 8; 1, upright, where it says none."""
    try:
        with PIL.Image.open(io.BytesIO(content), formats=_READABLE) as image:
            value = image.getexif().get(PIL.ExifTags.Base.Orientation, 1)
    except _DAMAGED:
        return 1
    return value if value in range(1, 9) else 1


def _check_file(path: Path) -> None:
    status = path.stat()
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):  # a folder: OSError
        raise UserError(f"{path}: no file, but a pipe, a device or a socket; save the photo first.")
    if status.st_size > MAX_FILE_BYTES:
        raise UserError(f"{path}: a file of {status.st_size:,} bytes; {MAX_FILE_BYTES:,} are read.")


def _features_file(path: Path) -> np.ndarray:
    return _finite(arrays.read(str(path), path), path)


def _finite(features: np.ndarray, source: object) -> np.ndarray:
    if features.ndim == 1 and features.dtype.kind in "fiu":
        with np.errstate(over="ignore"):
            values = np.array(features, np.float32)
        if np.isfinite(values).all():
            return values
    raise UserError(
        f"{source}: features are finite numbers [D], and these are {features.dtype} "
        f"{list(features.shape)}{' with NaN or infinity' if features.ndim == 1 else ''}."
    )


def decodable(
    content: bytes, source: object, max_bytes: int | None = None, check: bool = True
) -> bytes:
    """The bytes, or a JPEG where the model does not know the format or they are too many.

    An image whose pixels cannot be decoded is refused here, or without `check` by the model.
    """
    try:
        with PIL.Image.open(io.BytesIO(content), formats=_READABLE) as image:
            if check:
                image.load()
            is_small = max_bytes is None or len(content) <= max_bytes
            if image.format in _SENT and is_small and _is_plain(image, content):
                return content
            upright = ImageOps.exif_transpose(image).convert("RGB")
    except _DAMAGED as error:
        raise _explained(error, source) from None
    jpeg = _jpeg(upright)
    while max_bytes is not None and len(jpeg) > max_bytes:
        scale = min(0.9, (max_bytes / len(jpeg)) ** 0.5)
        upright = upright.resize([max(1, round(side * scale)) for side in upright.size])
        if max(upright.size) < _SMALLEST_SIDE:
            raise UserError(f"{source}: no image of {max_bytes} bytes can be made of it.")
        jpeg = _jpeg(upright)
    return jpeg


def preview(content: bytes, source: object, side: int) -> bytes:
    """A JPEG for people, upright, of at most `side` pixels in width and height.

    An image of more pixels than the model decodes is refused before it is decoded.
    """
    try:
        with PIL.Image.open(io.BytesIO(content), formats=_READABLE) as image:
            if image.width * image.height > MAX_PIXELS:
                raise PIL.Image.DecompressionBombError
            image.draft("RGB", (side, side))
            upright = ImageOps.exif_transpose(image).convert("RGB")
    except _DAMAGED as error:
        raise _explained(error, source) from None
    upright.thumbnail((side, side))
    return _jpeg(upright, _PREVIEW_QUALITY)


def _explained(error: Exception, source: object) -> UserError:
    """Why Pillow could not read an image."""
    too_large = PIL.Image.DecompressionBombError, PIL.Image.DecompressionBombWarning
    if isinstance(error, too_large):
        what = f"an image of too many pixels, more than {MAX_PIXELS:,}"
    else:
        is_image = not isinstance(error, PIL.UnidentifiedImageError)
        what = "a damaged image" if is_image else "no image"
    return UserError(f"{source}: {what}; {_UNDERSTOOD}.")


def _is_plain(image: PIL.Image.Image, content: bytes) -> bool:
    """Whether the model sees the colours that Pillow sees, which it does not of every BMP."""
    if image.format != "BMP":
        return True
    header_size, bits, compression = struct.unpack_from("<I10xHI", content, 14)
    is_known = bits in (24, 32) or (bits == 8 and image.mode == "L")
    return header_size >= 40 and compression == 0 and is_known


def _jpeg(image: PIL.Image.Image, quality: int = _JPEG_QUALITY) -> bytes:
    content = io.BytesIO()
    image.save(content, "JPEG", quality=quality)
    return content.getvalue()


def _png(image: PIL.Image.Image) -> bytes:
    content = io.BytesIO()
    image.convert("RGB").save(content, "PNG", compress_level=1)
    return content.getvalue()
