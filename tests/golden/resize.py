"""Writes resize.json: sums of the values of Pillow 13.0.0's `Image.resize` over odd sizes, of each filter: the sum of
(position + 1) * value modulo 2^32. Pillow resizes 16 bits only where there is one channel.

    python tests/golden/resize.py > tests/golden/resize.json
"""

import json
import sys

import numpy as np
from PIL import Image

FILTERS = ["nearest", "bilinear", "bicubic", "lanczos"]
SIZES = [
    ([1, 1], [1, 1]), ([1, 1], [3, 5]), ([2, 3], [1, 1]), ([3, 2], [7, 11]), ([5, 7], [5, 3]), ([5, 7], [2, 7]),
    ([17, 29], [16, 16]), ([37, 53], [16, 16]), ([37, 53], [3, 5]), ([37, 53], [61, 97]), ([64, 64], [32, 32]),
    ([64, 64], [31, 33]), ([64, 48], [63, 47]), ([100, 75], [33, 33]), ([101, 7], [10, 70]), ([7, 101], [70, 10]),
    ([90, 120], [67, 89]), ([96, 128], [32, 42]), ([128, 96], [42, 32]), ([99, 33], [33, 11]), ([50, 50], [150, 150]),
    ([47, 71], [46, 72]), ([33, 65], [64, 32]), ([200, 300], [7, 7]), ([31, 31], [224, 224]), ([240, 320], [192, 256]),
    ([150, 113], [112, 112]), ([61, 59], [59, 61]), ([13, 250], [12, 25]), ([250, 13], [25, 12]),
]


def picture(channels, height, width):
    spread = np.arange(height * width * channels, dtype=np.uint64) * 2654435761 % 2**32 >> 24
    return spread.astype(np.uint8).reshape(height, width, channels)


def total(values):
    flat = values.flatten().astype(np.uint64)
    return int((flat * np.arange(1, flat.size + 1, dtype=np.uint64)).sum() % 2**32)


def case(source, target, channels, bits):
    values = picture(channels, *source)
    if channels == 1:
        values = values[..., 0]
    # Of RGBA it would resize colours times their alpha.
    modes = {1: "L", 3: "RGB", 4: "CMYK"}
    height, width = source
    if bits == 8:
        image = Image.frombytes(modes[channels], (width, height), values.tobytes())
    else:
        image = Image.fromarray(values.astype(np.uint16) * 251)
    resized = {f: image.resize((target[1], target[0]), getattr(Image.Resampling, f.upper())) for f in FILTERS}
    sums = {name: total(np.asarray(image)) for name, image in resized.items()}
    return {"from": source, "to": target, "channels": channels, "bits": bits, **sums}


cases = [case(*sizes, channels, bits) for sizes in SIZES for channels, bits in [(1, 8), (3, 8), (4, 8), (1, 16)]]
sys.stdout.write("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")
