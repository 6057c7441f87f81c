"""Writes layer_decay.json: the factor of each parameter's learning rate by timm 1.0.31's `param_groups_layer_decay`.

    python tests/golden/layer_decay.py > tests/golden/layer_decay.json
"""

import timm
from timm.optim import param_groups_layer_decay

from filled import write

DECAY = 0.75


def factors(model):
    """[name, shape, factor] of each parameter, in registration order."""
    groups = param_groups_layer_decay(model, layer_decay=DECAY)
    scales = {id(p): group["lr_scale"] for group in groups for p in group["params"]}
    return [[name, list(p.shape), scales[id(p)]] for name, p in model.named_parameters()]


heads = {"resnet18": "fc.", "vit_tiny_patch16_224": "head.", "convnext_atto": "head."}
write({
    name: {"head": head, "factors": factors(timm.create_model(name))}
    for name, head in heads.items()
})
