"""Writes hf_dataset: parquet files of images and classes as `datasets` writes them, and some that
cannot be used.

python hf_dataset.py     (datasets 5.2.0, pyarrow 26.0.1, Pillow 13.0.0)
"""

import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import ClassLabel, Dataset, Features, Image, Value
from PIL import Image as Picture

FOLDER = Path(__file__).parent / "hf_dataset"
NAMES = ["cat", "dog", "emu"]
COLOURS = [(200, 40, 40), (40, 180, 60), (50, 70, 210)]
SIZE = 8


def encoded(label, index):
    """A picture of 8 x 8 pixels, PNG or JPEG in turn, of a colour near that of its class."""
    red, green, blue = COLOURS[label]
    picture = Picture.new("RGB", (SIZE, SIZE))
    for at in range(SIZE * SIZE):
        shade = (7 * at + 13 * index) % 29
        picture.putpixel((at % SIZE, at // SIZE), (red + shade, green + shade, blue + shade))
    file = io.BytesIO()
    picture.save(file, "PNG" if index % 2 == 0 else "JPEG")
    return file.getvalue()


def split(first, n):
    """Columns of `n` rows, the first of which has this number."""
    numbers = range(first, first + n)
    labels = [number % 3 for number in numbers]
    images = [{"bytes": encoded(label, number), "path": None} for label, number in zip(labels, numbers)]
    return {"id": list(numbers), "image": images, "label": labels}


def written(name, columns, features):
    path = FOLDER / name
    path.parent.mkdir(parents=True, exist_ok=True)
    Dataset.from_dict(columns, features=Features(features)).to_parquet(path, batch_size=10)


def plain(name, columns, **options):
    """A file without a description of `datasets`."""
    pq.write_table(pa.table(columns), FOLDER / name, **options)


usual = {"id": Value("int64"), "image": Image(), "label": ClassLabel(names=NAMES)}
for index in range(2):
    written(f"pets/data/train-{index:05}-of-00002.parquet", split(24 * index, 24), usual)
written("pets/data/test-00000-of-00001.parquet", split(100, 12), usual)

images = pa.array([image["bytes"] for image in split(0, 12)["image"]])
words = pa.array([NAMES[number % 3] for number in range(12)])
plain("words.parquet", {"photo": images, "species": words}, compression="zstd")
structs = pa.array(split(0, 12)["image"], pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
numbers = pa.array([number % 3 for number in range(12)], pa.int32())
plain("numbers.parquet", {"image": structs, "label": numbers}, row_group_size=5)

few = split(0, 6)
written("other_names.parquet", few, {**usual, "label": ClassLabel(names=["cat", "emu", "dog"])})
written("unlabelled.parquet", {**few, "label": [0, 1, 2, -1, -1, -1]}, usual)
written("null_label.parquet", {**few, "label": [0, 1, None, 0, 1, 2]}, usual)
only_path = few["image"][:4] + [{"bytes": None, "path": "4.png"}] + few["image"][5:]
written("path_only.parquet", {**few, "image": only_path}, usual)
no_image = few["image"][:5] + [{"bytes": b"no image", "path": None}]
written("undecodable.parquet", {**few, "image": no_image}, usual)
coarse = {**few, "coarse": [0, 0, 1, 0, 0, 1]}
written("two_labels.parquet", coarse, {**usual, "coarse": ClassLabel(names=["mammal", "bird"])})
written("no_image.parquet", {"id": few["id"], "label": few["label"]}, {"id": usual["id"], "label": usual["label"]})
