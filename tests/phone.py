"""One photograph as phones store it: turned in eight ways, with the EXIF orientation of each."""

import io

import skimage.data
from PIL import Image
from PIL.Image import Transpose

ORIENTATION = 0x0112
_STORED = {
    2: Transpose.FLIP_LEFT_RIGHT,
    3: Transpose.ROTATE_180,
    4: Transpose.FLIP_TOP_BOTTOM,
    5: Transpose.TRANSPOSE,
    6: Transpose.ROTATE_90,
    7: Transpose.TRANSVERSE,
    8: Transpose.ROTATE_270,
}


def tag(orientation: int) -> bytes:
    """A TIFF structure with an orientation, as a PNG's eXIf chunk holds it."""
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return exif.tobytes().removeprefix(b"Exif\0\0")


def strip(length: int, orientation: int) -> bytes:
    """A JPEG one pixel wide."""
    content = io.BytesIO()
    Image.new("RGB", (1, length), "red").save(content, "JPEG", exif=b"Exif\0\0" + tag(orientation))
    return content.getvalue()


def photograph(orientation: int, tagged: bool = True) -> bytes:
    """A JPEG of the same scene for every orientation; without the tag it is seen as stored."""
    scene = Image.fromarray(skimage.data.coffee()).resize((320, 240))
    if orientation in _STORED:
        scene = scene.transpose(_STORED[orientation])
    exif = Image.Exif()
    exif[ORIENTATION] = orientation if tagged else 1
    content = io.BytesIO()
    scene.save(content, "JPEG", quality=98, subsampling=0, exif=exif)
    return content.getvalue()


PHOTOGRAPHS = [photograph(orientation) for orientation in range(1, 9)]
STORED = [photograph(orientation, tagged=False) for orientation in range(1, 9)]
