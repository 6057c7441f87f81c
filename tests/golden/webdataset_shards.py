"""Writes webdataset: tar shards as the library webdataset writes them, and samples.json: the samples
of each as the library reads them, in its order.

python webdataset_shards.py     (webdataset 1.0.2, Pillow 13.0.0)
"""

import io
import json
import zlib
from pathlib import Path

import webdataset as wds
from PIL import Image as Picture

FOLDER = Path(__file__).parent / "webdataset"
NAMES = ["cat", "dog", "emu"]
COLOURS = [(200, 40, 40), (40, 180, 60), (50, 70, 210)]
SIZE = 8


def encoded(label, index):
    """The field and the bytes of a picture of 8 x 8 pixels, PNG or JPEG in turn, of a colour near
    that of its class."""
    red, green, blue = COLOURS[label]
    picture = Picture.new("RGB", (SIZE, SIZE))
    for at in range(SIZE * SIZE):
        shade = (7 * at + 13 * index) % 29
        picture.putpixel((at % SIZE, at // SIZE), (red + shade, green + shade, blue + shade))
    file = io.BytesIO()
    picture.save(file, "PNG" if index % 2 == 0 else "JPEG")
    return ("png" if index % 2 == 0 else "jpg", file.getvalue())


def numbers(number):
    field, image = encoded(number % 3, number)
    return {"__key__": f"{number:06}", field: image, "cls": number % 3}


def words(number):
    field, image = encoded(number % 3, number)
    return {"__key__": f"deep/folder/{number:06}", field: image, "breed.txt": NAMES[number % 3], "txt": "a caption"}


def objects(number):
    field, image = encoded(number % 3, number)
    return {"__key__": f"{number:06}", field: image, "json": {"label": number % 3, "width": SIZE}}


def write(name, samples):
    with wds.TarWriter(str(FOLDER / name), mtime=0, user="", group="", mode=0o644) as writer:
        for sample in samples:
            writer.write(sample)


def read(name):
    found = []
    for sample in wds.WebDataset(str(FOLDER / name), shardshuffle=False):
        image = next(sample[field] for field in ("jpg", "png") if field in sample)
        label = next(sample[field] for field in ("cls", "breed.txt", "json") if field in sample)
        found.append([sample["__key__"], zlib.crc32(image), label.decode()])
    return found


FOLDER.mkdir(exist_ok=True)
shards = {
    "pets-train-00.tar": [numbers(number) for number in range(24)],
    "pets-train-01.tar": [numbers(number) for number in range(24, 48)],
    "pets-test-00.tar": [numbers(number) for number in range(100, 112)],
    "words.tar": [words(number) for number in range(6)],
    "objects.tar": [objects(number) for number in range(6)],
}
for name, samples in shards.items():
    write(name, samples)
(FOLDER / "samples.json").write_text(json.dumps({name: read(name) for name in shards}, indent=1) + "\n")
