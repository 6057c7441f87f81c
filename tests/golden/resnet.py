"""Writes resnet.json: torchvision 0.29's ResNets with PyTorch 2.15, in f64, at 64 x 64 pixels.

    python tests/golden/resnet.py > tests/golden/resnet.json
"""

import torch
from torch import nn
from torch.nn import functional as F
from torchvision import models

from filled import fill_model, given, gradient, keys, parameters, summary, whole, write


class Animals90(nn.Module):
    """A ResNet-18 whose head has a hidden layer; without its dropout, which is random."""

    def __init__(self):
        super().__init__()
        self.resnet18 = models.resnet18()
        self.resnet18.fc = nn.Sequential(
            nn.Dropout(0.0), nn.Linear(512, 512), nn.ReLU(), nn.Dropout(0.0), nn.Linear(512, 90)
        )

    def forward(self, x):
        return self.resnet18(x)


MODELS = {
    "resnet18_1000": models.resnet18,
    "resnet18_90": lambda: models.resnet18(num_classes=90),
    "resnet18_10": lambda: models.resnet18(num_classes=10),
    "resnet34_1000": models.resnet34,
    "resnet50_1000": models.resnet50,
    "resnet50_90": lambda: models.resnet50(num_classes=90),
    "resnet18animals90": Animals90,
}


def running(model):
    """Elements of the running statistics, without their counters."""
    return sum(value.numel() for value in model.buffers() if value.is_floating_point())


def case(model, classes, gradients, first_norm="bn1"):
    x, y = given("input.x", (4, 3, 64, 64)), whole("input.y", (4,), classes)
    model = fill_model(model)
    model.eval()
    with torch.no_grad():
        seen = model(x)
    model.train()
    logits = model(x)
    loss = F.cross_entropy(logits, y)
    loss.backward()
    named, state = dict(model.named_parameters()), model.state_dict()
    statistics = [f"{first_norm}.running_mean", f"{first_norm}.running_var"]
    return {
        "eval_logits": summary(seen),
        "eval_loss": F.cross_entropy(seen, y).item(),
        "labels": y.tolist(),
        "train_logits": summary(logits),
        "train_loss": loss.item(),
        "grads": {name: gradient(named[name]) for name in gradients},
        "after_one_train_forward": {name: summary(state[name]) for name in statistics},
        "train_loss_label_smoothing_0.1": F.cross_entropy(logits, y, label_smoothing=0.1).item(),
    }


def trajectory(optimizer):
    """Losses of ten steps of eight images."""
    model = fill_model(models.resnet18(num_classes=10)).train()
    optimizer, losses = optimizer(model.parameters()), []
    for step in range(10):
        optimizer.zero_grad()
        logits = model(given(f"step{step}.x", (8, 3, 64, 64)))
        loss = F.cross_entropy(logits, whole(f"step{step}.y", (8,), 10))
        loss.backward()
        optimizer.step()
        losses.append(round(loss.item(), 8))
    return losses


resnet50_layer1 = [key for key in keys(models.resnet50()) if key[0].startswith("layer1.")]
write({
    "param_counts": {name: parameters(make()) for name, make in MODELS.items()},
    "buffer_elems": {name: running(make()) for name, make in MODELS.items()},
    "n_state_keys": {name: len(make().state_dict()) for name, make in MODELS.items()},
    "keys_resnet18": keys(models.resnet18()),
    "keys_resnet50_layer1": resnet50_layer1,
    "resnet18_64px_n4_c10": case(MODELS["resnet18_10"](), 10, [
        "conv1.weight", "bn1.weight", "bn1.bias", "layer1.0.conv1.weight", "layer2.0.downsample.0.weight",
        "layer2.0.downsample.1.weight", "layer4.1.conv2.weight", "layer4.1.bn2.bias", "fc.weight", "fc.bias",
    ]),
    "resnet50_64px_n4_c10": case(models.resnet50(num_classes=10), 10, [
        "conv1.weight", "bn1.weight", "layer1.0.conv3.weight", "layer1.0.downsample.0.weight", "layer4.2.bn3.weight",
        "fc.weight",
    ]),
    "resnet18animals90_64px_n4": case(Animals90(), 90, [
        "resnet18.conv1.weight", "resnet18.fc.1.weight", "resnet18.fc.4.weight", "resnet18.fc.4.bias",
    ], first_norm="resnet18.bn1"),
    "traj_resnet18_c10_64px_b8": {
        "adam_lr1e-4_wd1e-4(L2)": trajectory(lambda p: torch.optim.Adam(p, lr=1e-4, weight_decay=1e-4)),
        "sgd_lr0.002_m0.9_wd1e-4": trajectory(lambda p: torch.optim.SGD(p, lr=0.002, momentum=0.9, weight_decay=1e-4)),
    },
}, indent=1)
