"""Writes other_names.json: models of timm 1.0.31 and torchvision 0.29 (PyTorch 2.15, f64) that ddprun has under the names
of the other library: names and shapes of their state dicts, and what they answer.

    python tests/golden/other_names.py > tests/golden/other_names.json
"""

import timm
import torch
from torchvision.models import VisionTransformer

from filled import fill_model, given, keys, summary, write

SHAPE = (2, 3, 32, 32)


def case(model):
    model = fill_model(model).eval()
    tensors = [(name, shape) for name, shape in keys(model) if not name.endswith("num_batches_tracked")]
    with torch.no_grad():
        return {
            "tensors": [" ".join([name, *map(str, shape)]) for name, shape in tensors],
            "eval": summary(model(given("input.x", SHAPE))),
        }


TIMM = {
    "convnext_tiny": "convnext_tiny",
    "convnext_small": "convnext_small",
    "convnext_base": "convnext_base",
    "efficientnet_b0": "efficientnet_b0",
    "efficientnet_b1": "efficientnet_b1",
    "mobilenet_v2": "mobilenetv2_100",
    "regnet_y_400mf": "regnety_004",
    "regnet_x_400mf": "regnetx_004_tv",
    "densenet121": "densenet121",
    "mobilenet_v3_small": "mobilenetv3_small_100",
    "mobilenet_v3_large": "mobilenetv3_large_100",
}

# Heads and width; torchvision itself has the base size only, as `vit_b_16`.
TORCHVISION = {"vit_tiny": (3, 192), "vit_small": (6, 384), "vit_base": (12, 768)}


def vit(heads, width):
    return VisionTransformer(
        image_size=32, patch_size=16, num_layers=12, num_heads=heads, hidden_dim=width, mlp_dim=4 * width, num_classes=10,
    )


golden = {name: case(timm.create_model(theirs, num_classes=10)) for name, theirs in TIMM.items()}
golden |= {name: case(vit(*sizes)) for name, sizes in TORCHVISION.items()}
write(golden)
