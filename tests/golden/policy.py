"""Writes policy.json: the conditional U-Net of Diffusion Policy (Chi et al. 2023) written again in PyTorch 2.15, in f64,
with the samplers and the averaged weights that its recipes use.

    python tests/golden/policy.py > tests/golden/policy.json
"""

import torch
from torch import nn
from torch.nn import functional as F

from diffusion import BARS, BETAS, Embedding, noised
from filled import fill_model, given, gradient, keys, parameters, summary, whole, write

HORIZON, ACTIONS = 16, 2


class ConvBlock(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.block = nn.Sequential(nn.Conv1d(inputs, outputs, 5, padding=2), nn.GroupNorm(8, outputs), nn.Mish())

    def forward(self, x):
        return self.block(x)


class Residual(nn.Module):
    """Two convolutions, with scale and shift by the condition between them."""

    def __init__(self, inputs, outputs, condition):
        super().__init__()
        self.blocks = nn.ModuleList([ConvBlock(inputs, outputs), ConvBlock(outputs, outputs)])
        self.cond_encoder = nn.Sequential(nn.Mish(), nn.Linear(condition, 2 * outputs), nn.Unflatten(1, (2, outputs, 1)))
        self.residual_conv = nn.Conv1d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x, condition):
        film = self.cond_encoder(condition)
        out = film[:, 0] * self.blocks[0](x) + film[:, 1]
        return self.blocks[1](out) + self.residual_conv(x)


class Down(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv1d(width, width, 3, 2, 1)

    def forward(self, x):
        return self.conv(x)


class Up(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.ConvTranspose1d(width, width, 4, 2, 1)

    def forward(self, x):
        return self.conv(x)


class Unet(nn.Module):
    def __init__(self, actions, condition, widths, features):
        super().__init__()
        c = features + condition
        pairs = list(zip([actions, *widths[:-1]], widths))
        level = lambda a, b, last: nn.ModuleList([Residual(a, b, c), Residual(b, b, c), last])
        deep = widths[-1]
        self.mid_modules = nn.ModuleList([Residual(deep, deep, c), Residual(deep, deep, c)])
        self.diffusion_step_encoder = nn.Sequential(
            Embedding(features), nn.Linear(features, 4 * features), nn.Mish(), nn.Linear(4 * features, features)
        )
        self.up_modules = nn.ModuleList(level(2 * b, a, Up(a)) for a, b in reversed(pairs[1:]))
        self.down_modules = nn.ModuleList(level(a, b, Down(b) if b != deep else nn.Identity()) for a, b in pairs)
        first = widths[0]
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


def clean_of(x, predicted, bar):
    return ((x - (1 - bar).sqrt() * predicted) / bar.sqrt()).clamp(-1, 1)


@torch.no_grad()
def ddim(model, condition, steps):
    x, stride = given("sample.init", (3, HORIZON, ACTIONS)), 100 // steps
    for k in reversed(range(0, 100, stride)):
        predicted = model(x, torch.full((3,), k), condition)
        before = BARS[k - stride] if k >= stride else torch.tensor(1.0, dtype=torch.float64)
        x = before.sqrt() * clean_of(x, predicted, BARS[k]) + (1 - before).sqrt() * predicted
    return x


@torch.no_grad()
def ddpm(model, condition):
    x = given("sample.init", (3, HORIZON, ACTIONS))
    for k in reversed(range(100)):
        bar, beta = BARS[k], BETAS[k]
        before = BARS[k - 1] if k > 0 else torch.tensor(1.0, dtype=torch.float64)
        clean = clean_of(x, model(x, torch.full((3,), k), condition), bar)
        x = before.sqrt() * beta / (1 - bar) * clean + (1 - beta).sqrt() * (1 - before) / (1 - bar) * x
        if k > 0:
            variance = ((1 - before) / (1 - bar) * beta).clamp(min=1e-20)
            x = x + variance.sqrt() * given(f"ddpm.noise{k}", (3, HORIZON, ACTIONS))
    return x


def decay(update):
    """Of averaged weights, power 0.75 and at most 0.9999, by the number of updates before."""
    t = max(0, update - 1)
    return 0.0 if t == 0 else min(max(1 - (1 + t) ** -0.75, 0.0), 0.9999)


def small():
    return fill_model(Unet(ACTIONS, 10, [64, 128, 256], 64))


def trajectory():
    """Losses of 20 steps of AdamW, and the averaged weight of the last convolution after them."""
    model, losses = small(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.95, 0.999), eps=1e-8, weight_decay=1e-6)
    weight = model.final_conv[1].weight
    average = weight.detach().clone()
    for step in range(20):
        clean, noise = (given(f"step{step}.{what}", (4, HORIZON, ACTIONS)) for what in "xn")
        depth = whole(f"step{step}.t", (4,), 100)
        optimizer.zero_grad()
        predicted = model(noised(clean, noise, depth), depth, given(f"step{step}.c", (4, 10)))
        loss = F.mse_loss(predicted, noise)
        loss.backward()
        optimizer.step()
        losses.append(round(loss.item(), 8))
        keep = decay(step)
        average = keep * average + (1 - keep) * weight.detach()
    return losses, average


def count(*sizes):
    with torch.device("meta"):
        return parameters(Unet(*sizes))


model = small()
clean, noise = given("input.sample", (3, HORIZON, ACTIONS)), given("input.noise", (3, HORIZON, ACTIONS))
condition, depths = given("input.cond", (3, 10)), torch.tensor([0, 50, 99])
noisy = noised(clean, noise, depths)
output = model(noisy, depths, condition)
loss = F.mse_loss(output, noise)
loss.backward()
losses, average = trajectory()
write({
    "param_counts": {
        "droid_in10_cond1024": count(10, 1024, [256, 512, 1024], 256),
        "pusht_lowdim_in2_cond40_official(down256-512-1024)": count(2, 40, [256, 512, 1024], 256),
        "pusht_small_in2_cond10_down64-128-256": count(2, 10, [64, 128, 256], 64),
        "pusht_state5_in2_cond10": count(2, 10, [256, 512, 1024], 256),
        "pusht_in2_cond10_down32-64": count(2, 10, [32, 64], 32),
    },
    "small_keys": keys(model),
    "squaredcos_100": {
        "betas_first5": BETAS[:5].tolist(),
        "betas_last3": BETAS[-3:].tolist(),
        "alphas_cumprod_0_1_50_98_99": BARS[[0, 1, 50, 98, 99]].tolist(),
    },
    "small": {
        "noisy": summary(noisy),
        "output": summary(output),
        "mse_loss": loss.item(),
        "grads": {name: gradient(parameter) for name, parameter in model.named_parameters()},
        "ddpm100_from_init": summary(ddpm(model, condition)),
        "ddim10_from_init": summary(ddim(model, condition, 10)),
        "adamw_lr1e-4_b.95_losses_20": losses,
        "ema_final_conv.1.weight_after20": summary(average),
    },
    "ema_power0.75_decay_at_step": {
        str(step): decay(step) for step in [0, 1, 2, 3, 10, 100, 1000, 10000, 215444, 300000]
    },
}, indent=1)
