"""Writes tests/golden/images/: small files of every kind that an image folder may hold, and SUMS.tsv with the CRC-32 of
the pixels that Pillow 13.0.0 (libjpeg-turbo 3.2.0, libtiff 4.7.2, libwebp 1.6.0) reads from each as RGB, or `refused`.
UPRIGHT.tsv has the same of photos that name an orientation, after `ImageOps.exif_transpose`.

    python tests/golden/images.py
"""

import io
import math
import pathlib
import struct
import zlib

from PIL import Image, ImageOps

HERE = pathlib.Path(__file__).parent / "images"


def picture(width, height):
    """Smooth colours with an edge, so that chroma subsampling and every coefficient matter."""
    image = Image.new("RGB", (width, height))
    for y in range(height):
        for x in range(width):
            wave = math.sin(x / 3.0) * math.cos(y / 4.0)
            edge = 60 if x > y else 0
            image.putpixel((x, y), (int(128 + 90 * wave), (7 * x + 3 * y + edge) % 256, (5 * y + edge) % 256))
    return image


def encoded(image, kind, **options):
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def png(chunks):
    parts = [b"\x89PNG\r\n\x1a\n"]
    for kind, body in chunks:
        parts.append(struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)))
    return b"".join(parts)


def interlaced(image):
    """Pillow writes no Adam7: the seven passes by hand, unfiltered."""
    pixels, (width, height) = image.load(), image.size
    rows = b""
    passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
    for x0, y0, dx, dy in passes:
        for y in range(y0, height, dy):
            row = b"".join(bytes(pixels[x, y]) for x in range(x0, width, dx))
            rows += b"\0" + row if row else b""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 1)
    return png([(b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")])


def by_hand(kind, rows, chunks=()):
    """What Pillow does not write: `kind` is width, height, bits and colour type."""
    header = struct.pack(">IIBBBBB", *kind, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + row for row in rows))
    return png([(b"IHDR", header), *chunks, (b"IDAT", data), (b"IEND", b"")])


def with_tables_of_16_bits(jpeg):
    """The same quantization tables, each number in two bytes."""
    at, parts = 2, [jpeg[:2]]
    while jpeg[at + 1] != 0xDA:
        length = struct.unpack(">H", jpeg[at + 2 : at + 4])[0]
        body = jpeg[at + 4 : at + 2 + length]
        if jpeg[at + 1] == 0xDB:
            assert len(body) % 65 == 0
            tables = [body[i : i + 65] for i in range(0, len(body), 65)]
            body = b"".join(bytes([16 | table[0]]) + b"".join(b"\0" + bytes([n]) for n in table[1:]) for table in tables)
        parts.append(jpeg[at : at + 2] + struct.pack(">H", len(body) + 2) + body)
        at += 2 + length
    # Baseline files have tables of 8 bits only.
    parts = [b"\xff\xc1" + part[2:] if part[:2] == b"\xff\xc0" else part for part in parts]
    return b"".join(parts) + jpeg[at:]


def lying(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def files():
    rgb, tiny = picture(37, 29), picture(17, 17)
    for name, subsampling in [("444", 0), ("422", 1), ("420", 2)]:
        yield f"baseline_{name}.jpg", encoded(rgb, "JPEG", quality=85, subsampling=subsampling)
        yield f"progressive_{name}.jpg", encoded(rgb, "JPEG", quality=70, subsampling=subsampling, progressive=True)
    yield "restarts.jpg", encoded(rgb, "JPEG", quality=80, restart_marker_blocks=2)
    yield "optimized.jpg", encoded(tiny, "JPEG", quality=95, optimize=True)
    yield "coarse.jpg", encoded(rgb, "JPEG", quality=5)
    yield "grey.jpg", encoded(rgb.convert("L"), "JPEG")
    yield "one_pixel.jpg", encoded(picture(1, 1), "JPEG")
    yield "one_row.jpg", encoded(picture(33, 1), "JPEG")
    yield "cmyk.jpg", encoded(rgb.convert("CMYK"), "JPEG", quality=90)
    yield "cmyk_progressive.jpg", encoded(rgb.convert("CMYK"), "JPEG", quality=60, progressive=True)
    yield "cmyk.tiff", encoded(rgb.convert("CMYK"), "TIFF")
    yield "rotated_by_exif.jpg", encoded(rgb, "JPEG", exif=lying(6))
    for name, kind in [("mirrored_by_exif.jpg", "JPEG"), ("upside_down_by_exif.png", "PNG"), ("turned_by_exif.webp", "WEBP")]:
        orientation = {"JPEG": 5, "PNG": 3, "WEBP": 8}[kind]
        yield name, encoded(rgb, kind, exif=lying(orientation), **({"lossless": True} if kind == "WEBP" else {}))
    yield "rotated_cmyk_by_exif.jpg", encoded(rgb.convert("CMYK"), "JPEG", exif=lying(7))
    yield "turned_by_its_tag.tiff", encoded(rgb, "TIFF", exif=lying(6))
    yield "bytes_after_the_end.jpg", encoded(tiny, "JPEG") + b"a camera's maker wrote here"

    plain = encoded(rgb, "JPEG", quality=80)
    yield "tables_of_16_bits.jpg", with_tables_of_16_bits(plain)
    # Between two markers there may be any number of 0xFF, and what no decoder knows.
    yield "fill_bytes.jpg", plain[:2] + b"\xff\xff\xff" + plain[2:]
    yield "unreadable_exif.jpg", plain[:2] + b"\xff\xe1\0\x10Exif\0\0no tags!" + plain[2:]

    yield "rgb.png", encoded(rgb, "PNG")
    yield "interlaced.png", interlaced(tiny)
    yield "grey.png", encoded(rgb.convert("L"), "PNG")
    yield "two_colours.png", encoded(rgb.convert("1"), "PNG")
    yield "palette.png", encoded(rgb.quantize(16), "PNG", transparency=3)
    rgba = rgb.copy()
    rgba.putalpha(rgb.convert("L"))
    yield "alpha.png", encoded(rgba, "PNG")
    yield "grey_alpha.png", encoded(rgba.convert("LA"), "PNG")
    few = rgb.quantize(16)
    yield "palette_with_alpha_for_each_colour.png", encoded(few, "PNG", transparency=bytes(range(0, 256, 16)))
    yield "palette_of_1_bit.png", encoded(rgb.quantize(2), "PNG", bits=1, transparency=b"\0\xff")
    yield "palette_of_2_bits.png", encoded(rgb.quantize(4), "PNG", bits=2, transparency=1)
    yield "palette_of_8_bits.png", encoded(rgb.quantize(200), "PNG", transparency=199)
    yield "grey_transparent.png", encoded(rgb.convert("L"), "PNG", transparency=128)
    yield "two_colours_transparent.png", encoded(rgb.convert("1"), "PNG", transparency=0)
    yield "rgb_transparent.png", encoded(rgb, "PNG", transparency=rgb.getpixel((5, 5)))
    for bits in (2, 4):
        # Rows of 9 values do not end at a byte.
        row = lambda y: sum((x + y) % 2**bits << 64 - bits * (x + 1) for x in range(9)).to_bytes(8, "big")
        yield f"grey_of_{bits}_bits.png", by_hand((9, 7, bits, 0), [row(y)[: -(-9 * bits // 8)] for y in range(7)])
    deep = lambda *values: b"".join(struct.pack(">H", value) for value in values)
    grey16 = lambda x, y: (257 * x + 37 * y) * (1 + 20 * (x > y)) % 65536
    rows = [deep(*(grey16(x, y) for x in range(9))) for y in range(7)]
    yield "grey_16_bits.png", by_hand((9, 7, 16, 0), rows)
    yield "grey_16_bits_transparent.png", by_hand((9, 7, 16, 0), rows, [(b"tRNS", deep(grey16(2, 1)))])
    rows = [b"".join(deep(grey16(x, y), 65535 - 900 * x) for x in range(9)) for y in range(7)]
    yield "grey_alpha_16_bits.png", by_hand((9, 7, 16, 4), rows)
    rows = [b"".join(deep(257 * x, 1000 * y, 65535 - 300 * x) for x in range(9)) for y in range(7)]
    yield "rgb_16_bits.png", by_hand((9, 7, 16, 2), rows)
    yield "rgb_16_bits_transparent.png", by_hand((9, 7, 16, 2), rows, [(b"tRNS", deep(257, 1000, 65235))])
    rows = [b"".join(deep(257 * x, 1000 * y, 65535 - 300 * x, 7000 * y) for x in range(9)) for y in range(7)]
    yield "rgb_alpha_16_bits.png", by_hand((9, 7, 16, 6), rows)

    yield "rgb.bmp", encoded(rgb, "BMP")
    yield "lossless.webp", encoded(rgb, "WEBP", lossless=True)
    yield "rgb.ppm", encoded(rgb, "PPM")
    yield "plain.tiff", encoded(rgb, "TIFF")
    yield "lzw.tiff", encoded(rgb, "TIFF", compression="tiff_lzw")
    yield "deflate.tiff", encoded(rgb, "TIFF", compression="tiff_adobe_deflate")

    whole = encoded(rgb, "JPEG")
    yield "empty.jpg", b""
    yield "cut.jpg", whole[: len(whole) // 2]
    yield "text.jpg", b"<html>404 Not Found</html>"
    yield "cut.png", encoded(rgb, "PNG")[:400]
    header = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    yield "bomb.png", png([(b"IHDR", header), (b"IDAT", zlib.compress(b"\0" * 4096)), (b"IEND", b"")])


def read_by_pillow(data, upright=False):
    try:
        image = Image.open(io.BytesIO(data))
        image = (ImageOps.exif_transpose(image) if upright else image).convert("RGB")
    except Exception:
        return "refused", ""
    return f"{image.width}x{image.height}", f"{zlib.crc32(image.tobytes()):08x}"


HERE.mkdir(exist_ok=True)
lines, upright = [], []
for name, data in files():
    (HERE / name).write_bytes(data)
    lines.append("\t".join((name, *read_by_pillow(data))).rstrip() + "\n")
    if name.split(".")[0].endswith(("by_exif", "by_its_tag")):
        upright.append("\t".join((name, *read_by_pillow(data, True))) + "\n")
(HERE / "UPRIGHT.tsv").write_text("".join(upright))
(HERE / "SUMS.tsv").write_text("".join(lines))
