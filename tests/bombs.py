"""Small files that announce large images."""

import io
import struct
import zlib

from PIL import Image


def png(width: int, height: int, exif: bytes = b"") -> bytes:
    """A black PNG of one bit a pixel, whole, whatever its size."""
    row = b"\0" + bytes((width + 7) // 8)
    deflate = zlib.compressobj(9)
    parts = [deflate.compress(row * min(1000, height - top)) for top in range(0, height, 1000)]
    data = b"".join(parts) + deflate.flush()
    header = struct.pack(">2I5B", width, height, 1, 0, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"eXIf", exif), (b"IDAT", data), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content)) + name + content
        + struct.pack(">I", zlib.crc32(name + content))
        for name, content in chunks
        if content or name == b"IEND"
    )  # fmt: skip


def gif(side: int, frames: int, colour: str = "red") -> bytes:
    """An animation of large frames, all of one colour, without any optimisation between them."""
    content = io.BytesIO()
    Image.new("RGB", (side, side), colour).save(content, "GIF")
    single = content.getvalue()
    start = single.index(b",\0\0\0\0")
    return single[:start] + single[start:-1] * frames + b";"


def resized(content: bytes, width: int, height: int) -> bytes:
    """A JPEG, GIF or BMP whose header lies about its size."""
    if content.startswith(b"GIF"):
        sides = struct.pack("<2H", width, height)
        start = content.index(b",\0\0\0\0") + 5
        return content[:start] + sides + content[start + 4 :]
    if content.startswith(b"BM"):
        return content[:18] + struct.pack("<2i", width, height) + content[26:]
    start = content.index(b"\xff\xc0") + 5
    return content[:start] + struct.pack(">2H", height, width) + content[start + 4 :]
