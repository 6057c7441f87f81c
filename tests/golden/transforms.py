"""Writes transforms.json: pixels of torchvision 0.29.2's transforms of Pillow 13.0.0 images (torch 2.15), summed up as the
sum of (position + 1) * value modulo 2^32.

    python tests/golden/transforms.py > tests/golden/transforms.json
"""

import numpy as np
from PIL import Image
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from filled import write


def picture(channels, height, width):
    y, x, c = np.meshgrid(np.arange(height), np.arange(width), np.arange(channels), indexing="ij")
    values = ((7 * x + 13 * y + 50 * c + x * y) % 256).astype(np.uint8)
    return Image.fromarray(values if channels == 3 else values[..., 0])


def dull(channels, height, width):
    """The same in a few shades: something to stretch."""
    return picture(channels, height, width).point(lambda v: 40 + v // 3)


def colours():
    """4,096 colours spread over the cube by multiplication with 2654435761."""
    spread = (np.arange(4096, dtype=np.uint64) * 2654435761 % 2**32).astype(np.uint32)
    values = np.stack([spread >> 24, spread >> 16 & 255, spread >> 8 & 255], axis=-1)
    return Image.fromarray(values.astype(np.uint8).reshape(64, 64, 3))


def values(image):
    return np.asarray(image).flatten().astype(np.uint64)


def total(image):
    flat = values(image)
    return int((flat * np.arange(1, flat.size + 1, dtype=np.uint64)).sum() % 2**32)


IMAGES = {
    "colour": picture(3, 12, 17),
    "grey": picture(1, 12, 17),
    "dull": dull(3, 37, 53),
    "dull_grey": dull(1, 37, 53),
    "colours": colours(),
}


def sums(change):
    return {name: total(change(image)) for name, image in IMAGES.items()}


def affine(angle=0.0, translate=(0, 0), scale=1.0, shear=0.0):
    return sums(lambda image: F.affine(image, angle, list(translate), scale, [shear, 0.0]))


def operations(space, bins, chosen):
    """What each operation of an automatic augmentation does at one of its magnitudes, both ways where it has two."""
    applied = {}
    for name, (magnitudes, signed) in space._AUGMENTATION_SPACE.items():
        for sign in (1, -1) if signed else (1,):
            def change(image):
                found = magnitudes(bins, image.height, image.width)
                magnitude = 0.0 if found is None else sign * float(found[chosen])
                return space()._apply_image_or_video_transform(image, name, magnitude, "nearest", {})
            applied[f"{name}{'+' if sign > 0 else '-'}"] = sums(change)
    return applied


golden = {
    "vertical_flip": sums(F.vertical_flip),
    "grayscale_3": sums(lambda image: F.rgb_to_grayscale(image.convert("RGB"), 3)),
    "grayscale_1": sums(lambda image: F.rgb_to_grayscale(image.convert("RGB"), 1)),
    "autocontrast": sums(F.autocontrast),
    "equalize": sums(F.equalize),
    "invert": sums(F.invert),
}
for bits in (1, 3, 8):
    golden[f"posterize {bits}"] = sums(lambda image: F.posterize(image, bits))
for threshold in (0.0, 100.5, 128.0, 255.0):
    golden[f"solarize {threshold}"] = sums(lambda image: F.solarize(image, threshold))
for factor in (0.0, 0.5, 1.9):
    golden[f"sharpness {factor}"] = sums(lambda image: F.adjust_sharpness(image, factor))
golden["affine shear"] = affine(shear=12.5)
golden["affine translate"] = affine(translate=(3, -2))
golden["affine scale"] = affine(scale=0.83)
golden["affine all"] = affine(angle=-33.0, translate=(-1, 4), scale=1.21, shear=-7.0)
for kernel, sigma in ((3, 0.7), (5, 1.3), (9, 2.0)):
    blurred = F.gaussian_blur(IMAGES["colour"], [kernel, kernel], [sigma, sigma])
    golden[f"blur {kernel} {sigma}"] = values(blurred).tolist()
golden["rand_augment 9"] = operations(v2.RandAugment, 31, 9)
golden["rand_augment 30"] = operations(v2.RandAugment, 31, 30)
golden["trivial_augment_wide 17"] = operations(v2.TrivialAugmentWide, 31, 17)
golden["trivial_augment_wide 30"] = operations(v2.TrivialAugmentWide, 31, 30)
write(golden)
