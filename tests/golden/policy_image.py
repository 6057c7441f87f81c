"""Writes policy_image.json: LeRobot's diffusion policy of images (github.com/huggingface/lerobot, policies/diffusion)
written again in PyTorch 2.15 and torchvision 0.29, in f64: a residual network with group norms, spatial softmax, and the
U-Net of policy.py under LeRobot's names. Crops are left out: they are transforms of the data.

    python tests/golden/policy_image.py > tests/golden/policy_image.json
"""

import torch
from torch import nn
from torch.nn import functional as F
from torchvision import models

from diffusion import Embedding, noised
from filled import fill_model, given, gradient, keys, parameters, summary, write

HORIZON, ACTIONS, SEEN, NUMBERS = 16, 2, 2, 3


class SpatialSoftmax(nn.Module):
    """The mean place of each of `points` maps under its softmax, x before y, from -1 to 1."""

    def __init__(self, channels, height, width, points):
        super().__init__()
        self.nets = nn.Conv2d(channels, points, 1)
        y, x = torch.meshgrid(torch.linspace(-1, 1, height), torch.linspace(-1, 1, width), indexing="ij")
        self.register_buffer("pos_grid", torch.stack([x.flatten(), y.flatten()], 1))

    def forward(self, maps):
        shares = self.nets(maps).flatten(2).softmax(-1)
        return shares @ self.pos_grid


def grouped(module):
    """The module with a group norm of 16 channels a group in place of each batch norm."""
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm2d):
            setattr(module, name, nn.GroupNorm(child.num_features // 16, child.num_features))
        else:
            grouped(child)
    return module


class RgbEncoder(nn.Module):
    def __init__(self, name, image, points):
        super().__init__()
        self.backbone = grouped(nn.Sequential(*list(getattr(models, name)().children())[:-2]))
        with torch.no_grad():
            shape = self.backbone(torch.zeros(1, *image)).shape[1:]
        self.pool = SpatialSoftmax(*shape, points)
        self.out = nn.Linear(2 * points, 2 * points)

    def forward(self, images):
        return F.relu(self.out(self.pool(self.backbone(images)).flatten(1)))


class ConvBlock(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.block = nn.Sequential(nn.Conv1d(inputs, outputs, 5, padding=2), nn.GroupNorm(8, outputs), nn.Mish())

    def forward(self, x):
        return self.block(x)


class Residual(nn.Module):
    def __init__(self, inputs, outputs, condition):
        super().__init__()
        self.conv1 = ConvBlock(inputs, outputs)
        self.cond_encoder = nn.Sequential(nn.Mish(), nn.Linear(condition, 2 * outputs))
        self.conv2 = ConvBlock(outputs, outputs)
        self.residual_conv = nn.Conv1d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x, condition):
        scale, bias = self.cond_encoder(condition)[..., None].chunk(2, 1)
        return self.conv2(scale * self.conv1(x) + bias) + self.residual_conv(x)


class Unet(nn.Module):
    def __init__(self, actions, condition, widths, features):
        super().__init__()
        c = features + condition
        pairs = list(zip([actions, *widths[:-1]], widths))
        level = lambda a, b, last: nn.ModuleList([Residual(a, b, c), Residual(b, b, c), last])
        deep, first = widths[-1], widths[0]
        self.diffusion_step_encoder = nn.Sequential(
            Embedding(features), nn.Linear(features, 4 * features), nn.Mish(), nn.Linear(4 * features, features)
        )
        halved = lambda width: nn.Conv1d(width, width, 3, 2, 1) if width != deep else nn.Identity()
        self.down_modules = nn.ModuleList(level(a, b, halved(b)) for a, b in pairs)
        self.mid_modules = nn.ModuleList([Residual(deep, deep, c), Residual(deep, deep, c)])
        doubled = lambda width: nn.ConvTranspose1d(width, width, 4, 2, 1)
        self.up_modules = nn.ModuleList(level(2 * b, a, doubled(a)) for a, b in reversed(pairs[1:]))
        self.final_conv = nn.Sequential(ConvBlock(first, first), nn.Conv1d(first, actions, 1))

    def forward(self, noisy, step, condition):
        x = noisy.transpose(1, 2)
        c = torch.cat([self.diffusion_step_encoder(step), condition], 1)
        skips = []
        for first, second, down in self.down_modules:
            x = second(first(x, c), c)
            skips.append(x)
            x = down(x)
        for block in self.mid_modules:
            x = block(x, c)
        for first, second, up in self.up_modules:
            x = up(second(first(torch.cat([x, skips.pop()], 1), c), c))
        return self.final_conv(x).transpose(1, 2)


class Diffusion(nn.Module):
    def __init__(self, actions, numbers, cameras, image, backbone, points, separate, widths, features):
        super().__init__()
        encoder = lambda: RgbEncoder(backbone, image, points)
        self.rgb_encoder = nn.ModuleList(encoder() for _ in range(cameras)) if separate else encoder()
        self.separate = separate
        self.unet = Unet(actions, SEEN * (numbers + 2 * points * cameras), widths, features)

    def condition(self, numbers, images):
        """Numbers (n, seen, numbers), images (n, seen, cameras, channels, height, width) -> (n, features)."""
        n, seen, cameras = images.shape[:3]
        if self.separate:
            of_camera = [encoder(images[:, :, i].flatten(0, 1)) for i, encoder in enumerate(self.rgb_encoder)]
            features = torch.stack(of_camera, 1)
        else:
            features = self.rgb_encoder(images.flatten(0, 2))
        return torch.cat([numbers, features.reshape(n, seen, -1)], 2).flatten(1)


class Policy(nn.Module):
    """As LeRobot's, so that all names begin with `diffusion`."""

    def __init__(self, *sizes):
        super().__init__()
        self.diffusion = Diffusion(*sizes)

    def forward(self, noisy, step, numbers, images):
        return self.diffusion.unet(noisy, step, self.diffusion.condition(numbers, images))


def case(name, cameras, image, backbone, points, separate):
    model = Policy(ACTIONS, NUMBERS, cameras, image, backbone, points, separate, [16, 32], 16)
    skip = [key for key, _ in keys(model) if key.endswith("pos_grid")]
    fill_model(model, skip)
    clean, noise = given(f"{name}.clean", (3, HORIZON, ACTIONS)), given(f"{name}.noise", (3, HORIZON, ACTIONS))
    # As a batch holds them: the numbers of an observation, then its images.
    values = NUMBERS + cameras * image[0] * image[1] * image[2]
    observed = given(f"{name}.observed", (3, SEEN, values))
    images = observed[..., NUMBERS:].reshape(3, SEEN, cameras, *image)
    depths = torch.tensor([0, 50, 99])
    output = model(noised(clean, noise, depths), depths, observed[..., :NUMBERS], images)
    loss = F.mse_loss(output, noise)
    loss.backward()
    return {
        "parameters": parameters(model),
        "keys": keys(model),
        "output": summary(output),
        "loss": loss.item(),
        "grads": {name: gradient(parameter) for name, parameter in model.named_parameters()},
    }


def count(*sizes):
    return parameters(Policy(*sizes))


write({
    # LeRobot's configuration for pusht: one camera of 96x96, cropped to 84x84.
    "pusht": count(2, 2, 1, (3, 84, 84), "resnet18", 32, False, [512, 1024, 2048], 128),
    # And for the two-armed aloha: 14 joints, four cameras with an encoder each.
    "aloha": count(14, 14, 4, (3, 84, 84), "resnet18", 32, True, [512, 1024, 2048], 128),
    "encoders": {name: parameters(RgbEncoder(name, (3, 84, 84), 32)) for name in ["resnet18", "resnet34", "resnet50"]},
    "shared": case("shared", 2, (3, 40, 48), "resnet18", 4, False),
    "separate": case("separate", 2, (3, 33, 33), "resnet18", 4, True),
}, indent=1)
