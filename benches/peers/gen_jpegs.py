"""2,000 JPEG files of 500 x 375 pixels in `jpegs/train/<class>`, the same on every machine."""
import os

import numpy
from PIL import Image

for index in range(2000):
    random = numpy.random.default_rng(index)
    coarse, fine = (random.integers(0, 255, shape, numpy.uint8) for shape in [(24, 32, 3), (94, 125, 3)])
    coarse, fine = (Image.fromarray(a).resize((500, 375), Image.BICUBIC) for a in (coarse, fine))
    noise = random.normal(0, 6, (375, 500, 1))
    image = 32 + 0.5 * numpy.asarray(coarse) + 0.25 * numpy.asarray(fine) + noise
    folder = f"jpegs/train/class_{index % 90:02d}"
    os.makedirs(folder, exist_ok=True)
    Image.fromarray(image.clip(0, 255).astype(numpy.uint8)).save(f"{folder}/{index:04d}.jpg", quality=90)
