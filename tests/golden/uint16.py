"""Writes uint16.json: images of 16 bits as torchvision 0.29.2 (torch 2.15) and Pillow 13.0.0 read and transform them:
`torchvision.io.decode_image`, `v2.ToDtype(torch.float32, scale=True)` and functions of v2 on these values; rotation by
Pillow, whose nearest neighbours ours are.

    python tests/golden/uint16.py > tests/golden/uint16.json
"""

import io
import json
import struct
import zlib

import numpy as np
import torch
from PIL import Image
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F


def picture(channels, height, width):
    y, x, c = np.meshgrid(np.arange(height), np.arange(width), np.arange(channels), indexing="ij")
    return ((2777 * x + 4099 * y + 12345 * c + 611 * x * y) % 65536).astype(np.uint16)


def png(values):
    """Pillow writes no colours of 16 bits."""
    height, width, channels = values.shape
    colour = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    lines = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 16, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")


def encoded(values, format):
    file = io.BytesIO()
    Image.fromarray(values[..., 0]).save(file, format)
    return file.getvalue()


def floats(values):
    """(height, width, channels) of uint16 or uint8 to (3, height, width) of float32."""
    image = torch.from_numpy(np.repeat(values, 3, 2) if values.shape[2] == 1 else values).permute(2, 0, 1)
    return F.to_dtype(image, torch.float32, scale=True)


def shown(image):
    return [float(f"{v:.7g}") for v in image.flatten().tolist()]


def read(data):
    image = decode_image(torch.frombuffer(bytearray(data), dtype=torch.uint8), mode=ImageReadMode.RGB)
    return F.to_dtype(image, torch.float32, scale=True)


files = {
    "grey.png": png(picture(1, 5, 7)),
    "grey_alpha.png": png(picture(2, 5, 7)),
    "colour.png": png(picture(3, 5, 7)),
    "colour_alpha.png": png(picture(4, 5, 7)),
    "grey_8_bits.png": encoded((picture(1, 5, 7) >> 8).astype(np.uint8), "PNG"),
}
read_files = {name: {"bytes": data.hex(), "values": shown(read(data))} for name, data in files.items()}
tiff = encoded(picture(1, 5, 7), "TIFF")
with Image.open(io.BytesIO(tiff)) as image:
    found = np.asarray(image)[..., None]
read_files["grey.tif"] = {"bytes": tiff.hex(), "values": shown(floats(found))}

colour, grey = floats(picture(3, 12, 17)), floats(picture(1, 12, 17))
turned = np.asarray(Image.fromarray(picture(1, 12, 17)[..., 0]).rotate(30))[..., None]
transforms = {
    "resize": F.resize(colour, [7, 9], antialias=True),
    "resize_grey": F.resize(grey, [20, 24], antialias=True),
    "center_crop": F.center_crop(colour, [6, 20]),
    "horizontal_flip": F.horizontal_flip(colour),
    "vertical_flip": F.vertical_flip(colour),
    "grayscale": F.rgb_to_grayscale(colour),
    "normalize": v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])(colour),
    "rotate": floats(turned),
}
print(json.dumps({"files": read_files, "transforms": {name: shown(image) for name, image in transforms.items()}}))
