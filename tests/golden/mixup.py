"""Writes mixup.json: what timm 1.0.31's Mixup (torch 2.15, numpy 2.4.6) makes of two images and their labels, and the areas of
its CutMix.

    python tests/golden/mixup.py > tests/golden/mixup.json
"""

import numpy as np
import torch
from timm.data import mixup

from filled import given, write

SHAPE = (3, 5, 7)
images = given("mixup.images", (2, *SHAPE)).float()
labels = torch.tensor([1, 3])


def box(height, width, share, center):
    """timm's area of an image for a share and a centre, (top, bottom, left, right), and the share that is left."""
    places = iter(center)
    drawn, np.random.randint = np.random.randint, lambda low, high, size=None: next(places)
    (yl, yh, xl, xh), left = mixup.cutmix_bbox_and_lam((2, 3, height, width), share)
    np.random.randint = drawn
    return {"of": [height, width], "share": share, "center": center, "area": [int(v) for v in (yl, yh, xl, xh)], "left": float(left)}


class Given(mixup.Mixup):
    """Draws what it is told."""

    def __init__(self, share, is_cut):
        super().__init__(mixup_alpha=1.0, cutmix_alpha=1.0, label_smoothing=0.0, num_classes=5)
        self.told = share, is_cut

    def _params_per_batch(self):
        return self.told


def mixed(share, is_cut, center=()):
    places = iter(center)
    drawn, np.random.randint = np.random.randint, lambda low, high, size=None: next(places)
    # Its one-hot labels want a device of their own.
    x, y = Given(share, is_cut)(images.clone(), labels)
    np.random.randint = drawn
    return {"inputs": x.flatten().tolist(), "targets": y.flatten().tolist()}


write({
    "images": images.flatten().tolist(),
    "blend": mixed(0.3, False),
    "cut": mixed(0.4, True, (3, 1)),
    "areas": [
        box(32, 32, 0.5, (16, 16)),
        box(32, 48, 0.9, (0, 47)),
        box(17, 9, 0.02, (16, 4)),
        box(224, 224, 0.371, (100, 223)),
        box(5, 7, 0.999, (2, 2)),
    ],
})
