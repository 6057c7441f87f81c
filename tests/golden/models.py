"""Writes models.json: models of torchvision 0.29 and timm 1.0 with PyTorch 2.15, in f64, for small images: names, counts,
outputs, and gradients of sum(output r).

    python tests/golden/models.py > tests/golden/models.json
"""

import timm
import torch
from torch import nn
from torch.nn import functional as F
from torchvision import models

from filled import fill_model, given, gradient, keys, parameters, summary, write


class PaddedBlock(nn.Module):
    """The basic block of github.com/akamaster/pytorch_resnet_cifar10, with the shortcut of option A."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.padding = outputs // 4 if stride > 1 else 0

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.padding:
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.padding, self.padding))
        return F.relu(x + y)


class PaddedResNet(nn.Module):
    def __init__(self, blocks, num_classes=10):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        inputs = 16
        for stage, outputs in enumerate([16, 32, 64]):
            layers = []
            for i in range(blocks):
                layers.append(PaddedBlock(inputs, outputs, 2 if stage and i == 0 else 1))
                inputs = outputs
            setattr(self, f"layer{stage + 1}", nn.Sequential(*layers))
        self.linear = nn.Linear(64, num_classes)

    def forward(self, x):
        x = self.layer3(self.layer2(self.layer1(F.relu(self.bn1(self.conv1(x))))))
        return self.linear(x.mean((2, 3)))


def named(model):
    """Parameters in their order, each with its shape."""
    is_parameter = dict(model.named_parameters())
    shown = [(name, "x".join(map(str, shape))) for name, shape in keys(model) if name in is_parameter]
    return [f"{name} {shape}" for name, shape in shown]


def case(model, shape, gradients):
    """What a pass of training gives, then one of evaluation with the statistics as they were."""
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
        "names": named(model),
        "eval": summary(seen),
        "train": summary(y),
        "input": gradient(x),
        "grads": {name: gradient(learnt[name]) for name in gradients},
        "after": {},
    }


VIT = ["vit_tiny_patch16_224", "vit_small_patch16_224", "vit_base_patch16_224", "vit_large_patch16_224"]
TORCHVISION = [
    "resnet101", "resnet152", "resnext50_32x4d", "resnext101_32x8d", "resnext101_64x4d", "wide_resnet50_2",
    "wide_resnet101_2", "convnext_tiny", "convnext_small", "convnext_base", "convnext_large", "mobilenet_v2",
    "mobilenet_v3_small", "mobilenet_v3_large", *(f"efficientnet_b{i}" for i in range(8)), "efficientnet_v2_s",
    "efficientnet_v2_m", "efficientnet_v2_l", "densenet121", "densenet161", "densenet169", "densenet201",
    *(f"vgg{n}{norms}" for n in (11, 13, 16, 19) for norms in ("", "_bn")),
]
REGNET = [
    f"regnet_{kind}_{size}" for kind in "yx" for size in ("400mf", "800mf", "1_6gf", "3_2gf", "8gf", "16gf", "32gf")
]
SMALL = {"resnet20": 3, "resnet32": 5, "resnet44": 7, "resnet56": 9}

# Without memory for their weights.
with torch.device("meta"):
    counts = {name.split("_patch")[0]: parameters(timm.create_model(name)) for name in VIT}
    counts |= {name: parameters(getattr(models, name)()) for name in TORCHVISION}
counts |= {name: parameters(getattr(models, name)()) for name in REGNET}
counts |= {name: parameters(PaddedResNet(blocks)) for name, blocks in SMALL.items()}
IMAGES = (4, 3, 64, 64)



def size(model, shape):
    """What a model of the code of another one answers."""
    model = fill_model(model).eval()
    with torch.no_grad():
        return {"shape": list(shape), "eval": summary(model(given("input.x", shape)))}


sizes = {name.split("_patch")[0]: size(timm.create_model(name, img_size=32, num_classes=10), (2, 3, 32, 32))
         for name in VIT[1:3]}
sizes |= {name: size(getattr(models, name)(num_classes=10), (2, 3, 32, 32))
          for name in ["resnet101", "resnet152", "convnext_small", "convnext_base", "resnext101_32x8d", "wide_resnet50_2",
                       "efficientnet_b1", "efficientnet_b5", "efficientnet_v2_m", "densenet161", "regnet_y_3_2gf",
                       "regnet_x_8gf"]}
sizes |= {name: size(PaddedResNet(blocks), (2, 3, 16, 16)) for name, blocks in SMALL.items() if name != "resnet20"}

write({
    "param_counts": counts,
    "sizes": sizes,
    "vit_tiny": case(
        timm.create_model(VIT[0], img_size=(32, 48), num_classes=10), (3, 3, 32, 48),
        ["cls_token", "pos_embed", "patch_embed.proj.weight", "blocks.0.attn.qkv.weight", "blocks.11.mlp.fc2.bias",
         "norm.weight", "head.weight"],
    ),
    "convnext_tiny": case(
        models.convnext_tiny(num_classes=10, stochastic_depth_prob=0.0), IMAGES,
        ["features.0.0.weight", "features.1.0.layer_scale", "features.1.2.block.0.weight", "features.2.1.weight",
         "features.5.8.block.3.weight", "features.7.2.layer_scale", "classifier.0.bias", "classifier.2.weight"],
    ),
    "mobilenet_v3_small": case(
        models.mobilenet_v3_small(num_classes=10, dropout=0.0), IMAGES,
        ["features.0.0.weight", "features.1.block.1.fc1.weight", "features.1.block.1.fc2.bias",
         "features.4.block.1.0.weight", "features.12.1.weight", "classifier.0.weight", "classifier.3.bias"],
    ),
    "mobilenet_v3_large": case(
        models.mobilenet_v3_large(num_classes=10, dropout=0.0), IMAGES,
        ["features.0.0.weight", "features.4.block.2.fc2.weight", "classifier.3.weight"],
    ),
    "efficientnet_b0": case(
        models.efficientnet_b0(num_classes=10, dropout=0.0, stochastic_depth_prob=0.0), IMAGES,
        ["features.0.0.weight", "features.1.0.block.1.fc1.weight", "features.4.1.block.2.fc2.bias",
         "features.6.3.block.1.0.weight", "features.8.1.bias", "classifier.1.weight"],
    ),
    "resnext50_32x4d": case(
        models.resnext50_32x4d(num_classes=10), IMAGES,
        ["conv1.weight", "layer1.0.conv2.weight", "layer4.2.bn3.weight", "fc.weight"],
    ),
    "efficientnet_v2_s": case(
        models.efficientnet_v2_s(num_classes=10, dropout=0.0, stochastic_depth_prob=0.0), IMAGES,
        ["features.0.0.weight", "features.1.0.block.0.0.weight", "features.2.0.block.1.0.weight",
         "features.4.1.block.2.fc2.bias", "features.7.1.bias", "classifier.1.weight"],
    ),
    "mobilenet_v2": case(
        models.mobilenet_v2(num_classes=10, dropout=0.0), IMAGES,
        ["features.0.0.weight", "features.1.conv.1.weight", "features.9.conv.1.0.weight",
         "features.18.1.weight", "classifier.1.weight"],
    ),
    "regnet_y_400mf": case(
        models.regnet_y_400mf(num_classes=10), IMAGES,
        ["stem.0.weight", "trunk_output.block1.block1-0.proj.0.weight", "trunk_output.block2.block2-1.f.b.0.weight",
         "trunk_output.block3.block3-5.f.se.fc1.weight", "trunk_output.block4.block4-0.f.se.fc2.bias",
         "trunk_output.block4.block4-5.f.c.1.weight", "fc.weight"],
    ),
    "regnet_x_400mf": case(
        models.regnet_x_400mf(num_classes=10), IMAGES,
        ["stem.1.bias", "trunk_output.block2.block2-0.f.a.0.weight", "trunk_output.block4.block4-11.f.c.0.weight",
         "fc.bias"],
    ),
    "densenet121": case(
        models.densenet121(num_classes=10), IMAGES,
        ["features.conv0.weight", "features.denseblock1.denselayer6.conv2.weight", "features.transition1.conv.weight",
         "features.denseblock3.denselayer24.norm1.bias", "features.denseblock4.denselayer16.conv1.weight",
         "features.norm5.weight", "classifier.weight"],
    ),
    "vgg11": case(
        models.vgg11(num_classes=10, dropout=0.0), (2, 3, 64, 64),
        ["features.0.weight", "features.18.bias", "classifier.0.weight", "classifier.3.bias", "classifier.6.weight"],
    ),
    "vgg11_bn": case(
        models.vgg11_bn(num_classes=10, dropout=0.0), (2, 3, 64, 64),
        ["features.0.weight", "features.1.weight", "features.26.bias", "classifier.0.bias", "classifier.6.weight"],
    ),
    "dinov2": case(
        timm.create_model("vit_small_patch14_reg4_dinov2", img_size=(28, 42), num_classes=10), (3, 3, 28, 42),
        ["cls_token", "reg_token", "pos_embed", "blocks.0.ls1.gamma", "blocks.11.ls2.gamma", "blocks.3.attn.qkv.weight",
         "norm.weight", "head.weight"],
    ),
    "resnet20": case(
        PaddedResNet(3), (4, 3, 32, 32),
        ["conv1.weight", "layer1.0.bn1.weight", "layer2.0.conv1.weight", "layer3.2.conv2.weight", "linear.weight"],
    ),
})
