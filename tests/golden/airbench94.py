"""Writes airbench94.json: the network of airbench94 (github.com/KellerJordan/cifar10-airbench) with PyTorch 2.15, in f64,
and the filters that whiten patches of four small images.

    python tests/golden/airbench94.py > tests/golden/airbench94.json
"""

import numpy as np
import torch
from torch import nn

from filled import fill_model, given, gradient, keys, parameters, summary, write


def norm(channels):
    return nn.BatchNorm2d(channels, eps=1e-12, momentum=0.4)


class Group(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inputs, outputs, 3, padding="same", bias=False), norm(outputs)
        self.conv2, self.norm2 = nn.Conv2d(outputs, outputs, 3, padding="same", bias=False), norm(outputs)

    def forward(self, x):
        x = nn.functional.gelu(self.norm1(nn.functional.max_pool2d(self.conv1(x), 2)))
        return nn.functional.gelu(self.norm2(self.conv2(x)))


class Airbench94(nn.Module):
    def __init__(self, widths=(64, 256, 256), classes=10):
        super().__init__()
        self.whiten = nn.Conv2d(3, 24, 2)
        groups = [Group(a, b) for a, b in zip((24, *widths), widths)]
        self.layers = nn.Sequential(nn.GELU(), *groups, nn.MaxPool2d(3))
        self.head = nn.Linear(widths[-1], classes, bias=False)

    def forward(self, x):
        return self.head(self.layers(self.whiten(x)).flatten(1)) / 9


def images():
    i = np.arange(4 * 3 * 5 * 6, dtype=np.uint32)
    noise = (i * np.uint32(2654435761) >> np.uint32(16)) & 0xFF
    return torch.tensor((noise + 3.0 * (i % 60)) / 256 - 0.5).reshape(4, 3, 5, 6)


def whitening(x):
    patches = nn.functional.unfold(x, 2).transpose(1, 2).reshape(-1, 12)
    values, vectors = torch.linalg.eigh(patches.T @ patches / len(patches))
    vectors = (vectors / (values + 5e-4).sqrt()).T.flip(0)
    largest = vectors.gather(1, vectors.abs().argmax(1, keepdim=True))
    vectors = vectors * largest.sign()
    return torch.cat([vectors, -vectors]).flatten()


def case(model, shape, gradients):
    x = given("input.x", shape).requires_grad_()
    model = fill_model(model)
    model.eval()
    with torch.no_grad():
        seen = model(x)
    model.train()
    y = model(x)
    (y * given("input.r", tuple(y.shape))).sum().backward()
    learnt = dict(model.named_parameters())
    return {
        "names": [f"{name} {'x'.join(map(str, shape))}" for name, shape in keys(model) if name in learnt],
        "eval": summary(seen),
        "train": summary(y),
        "input": gradient(x),
        "grads": {name: gradient(learnt[name]) for name in gradients},
        "after": {name: summary(buffer) for name, buffer in model.named_buffers() if name.endswith("running_var")},
    }


write({
    "parameters": parameters(Airbench94()),
    "whitening": [round(float(value), 7) for value in whitening(images())],
    "airbench94": case(
        Airbench94((16, 24, 32)), (6, 3, 32, 32),
        ["whiten.weight", "whiten.bias", "layers.1.conv1.weight", "layers.1.norm1.bias", "layers.2.conv2.weight",
         "layers.3.norm2.weight", "head.weight"],
    ),
})
