"""What the generators of diffusion policies share: the embedding of a step, and the squared cosine schedule."""

import math

import torch
from torch import nn


class Embedding(nn.Module):
    """Sines and cosines of a diffusion step."""

    def __init__(self, width):
        super().__init__()
        self.half = width // 2

    def forward(self, step):
        waves = torch.exp(torch.arange(self.half, dtype=torch.float64) * -(math.log(10000) / (self.half - 1)))
        angles = step.double()[:, None] * waves[None]
        return torch.cat([angles.sin(), angles.cos()], 1)


def betas(n):
    """`squaredcos_cap_v2`."""
    bar = lambda t: math.cos((t + 0.008) / 1.008 * math.pi / 2) ** 2
    return torch.tensor([min(1 - bar((i + 1) / n) / bar(i / n), 0.999) for i in range(n)], dtype=torch.float64)


BETAS = betas(100)
BARS = torch.cumprod(1 - BETAS, 0)


def noised(clean, noise, step):
    bar = BARS[step].view(-1, 1, 1)
    return bar.sqrt() * clean + (1 - bar).sqrt() * noise
