"""Writes timebridge.json: TimeBridge (Liu et al. 2025) written again in PyTorch 2.15, in f64; 20 steps on ETTh1 in f32.

    python tests/golden/timebridge.py ETTh1.csv > tests/golden/timebridge.json
"""

import csv
import datetime
import hashlib
import math
import pathlib
import sys

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from filled import fill_model, given, gradient, keys, parameters, summary, write

ALPHA, MARKS = 0.35, 4


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, q, k, v):
        split = lambda x: x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)
        y = F.scaled_dot_product_attention(split(self.q_proj(q)), split(self.k_proj(k)), split(self.v_proj(v)))
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """What all blocks end with: two norms around two linear layers."""

    def finish(self, width, inner):
        self.fc1, self.fc2 = nn.Linear(width, inner), nn.Linear(inner, width)

    def norms(self, width):
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def end(self, x):
        x = self.norm1(x)
        return self.norm2(x + self.fc2(F.gelu(self.fc1(x))))


@torch.no_grad()
def without_trend(z, window):
    """Less a moving average along the features, whose first value is repeated at the front."""
    means = z.unfold(-1, window, 1).mean(-1)
    return z - torch.cat([means[..., :1].expand(*means.shape[:-1], window - 1), means], -1)


class Integrated(Block):
    """Attention within each series."""

    def __init__(self, width, inner, heads, stable):
        super().__init__()
        self.stable = stable
        self.attention = Attention(width, heads)
        self.finish(width, inner)
        self.norms(width)

    def forward(self, x):
        z = x.flatten(0, 1)
        steady = without_trend(z, self.stable)
        return self.end(z + self.attention(steady, steady, z)).view(x.shape)


class Sampling(Block):
    """Fewer patches."""

    def __init__(self, width, inner, heads, patches, kept):
        super().__init__()
        self.attention = Attention(width, heads)
        self.conv1 = nn.Conv1d(patches, kept, 1, bias=False)
        self.conv2 = nn.Conv1d(kept + 1, kept, 1, bias=False)
        self.finish(width, inner)
        self.norms(width)

    def forward(self, x):
        z = x.flatten(0, 1)
        a = self.conv1(z)
        b = self.conv2(torch.cat([a, z.mean(1, keepdim=True)], 1)) + a
        return self.end(self.attention(b, z, z) + b).view(*x.shape[:2], *a.shape[1:])


class Cointegrated(Block):
    """Attention across series, in the rows and then the columns of a square of them."""

    def __init__(self, width, inner, heads):
        super().__init__()
        self.attention1, self.attention2 = Attention(width, heads), Attention(width, heads)
        self.finish(width, inner)
        # The original has it, and never uses it.
        self.norm0 = nn.LayerNorm(width)
        self.norms(width)

    def forward(self, x):
        b, series, patches, width = x.shape
        side = math.ceil(math.sqrt(series))
        z = x.transpose(1, 2).flatten(0, 1)
        z = F.pad(z, (0, 0, 0, side * side - series)).reshape(-1, side, width)
        u = self.attention1(z, z, z).view(-1, side, side, width).transpose(1, 2).reshape(-1, side, width)
        v = self.attention2(u, u, u) + u
        v = v.view(-1, side, side, width).transpose(1, 2).reshape(b, patches, side * side, width)
        return self.end(x + v[:, :, :series].transpose(1, 2))


class TimeBridge(nn.Module):
    def __init__(self, seen, ahead, series, patch, kept, width, inner, heads, layers, stable=2):
        super().__init__()
        self.series, self.patches, self.patch = series, seen // patch, patch
        integrated, sampling, cointegrated = layers
        blocks = [Integrated(width, inner, heads, stable) for _ in range(integrated)]
        patches = self.patches
        for _ in range(sampling):
            blocks.append(Sampling(width, inner, heads, patches, kept))
            patches = kept
        blocks += [Cointegrated(width, inner, heads) for _ in range(cointegrated)]
        self.embedding = nn.ModuleDict({"proj": nn.Sequential(nn.Linear(patch, width, bias=False))})
        self.encoder = nn.ModuleDict({"attn_layers": nn.ModuleList(blocks)})
        self.decoder = nn.Sequential(nn.Flatten(2), nn.Linear(patches * width, ahead, bias=False))

    def forward(self, x, marks, seen=None):
        mean, std = x.mean(1, keepdim=True).detach(), x.std(1, keepdim=True).detach()
        rows = torch.cat([(x - mean) / (std + 1e-5), marks], 2).transpose(1, 2)
        h = self.embedding.proj(rows.unflatten(2, (self.patches, self.patch)))
        states = [h]
        for block in self.encoder.attn_layers:
            h = block(h)
            states.append(h)
        if seen is not None:
            seen.extend(states)
        return self.decoder(h[:, : self.series]).transpose(1, 2) * std + mean


def parts(y, target):
    spectra = torch.fft.rfft(y, dim=1) - torch.fft.rfft(target, dim=1)
    return (y - target).abs().mean(), spectra.abs().mean()


def both(y, target):
    time, frequency = parts(y, target)
    return (1 - ALPHA) * time + ALPHA * frequency


# Series, patch, kept patches, width, inner width, heads; blocks of each kind.
SETTINGS = {
    "ETTh1": ((7, 24, 30, 128, 128, 8), (3, 1, 0)),
    "ETTh2": ((7, 48, 15, 128, 128, 4), (3, 1, 0)),
    "ETTm1": ((7, 48, 6, 64, 128, 4), (3, 1, 0)),
    "ETTm2": ((7, 48, 15, 64, 128, 4), (3, 1, 0)),
    "weather": ((21, 48, 12, 128, 128, 8), (1, 1, 1)),
    "Solar": ((137, 48, 12, 128, 128, 8), (1, 1, 1)),
    "electricity": ((321, 24, 4, 512, 512, 32), (1, 1, 2)),
    "traffic": ((862, 24, 8, 512, 512, 64), (1, 1, 3)),
    "exchange": ((8, 24, 30, 128, 128, 8), (3, 1, 0)),
}


def made(data, seen, ahead, stable=2):
    (series, patch, kept, *sizes), layers = SETTINGS[data]
    # As many as there are, unless the authors' script names a number.
    kept = seen // patch if kept == 720 // patch else kept
    return TimeBridge(seen, ahead, series, patch, kept, *sizes, layers, stable)


def counts():
    with torch.device("meta"):
        count = lambda *of: {str(ahead): parameters(made(*of, ahead)) for ahead in (96, 192, 336, 720)}
        return {f"{data}_in{seen}": count(data, seen) for seen in (720, 96) for data in SETTINGS}


def tiny():
    return fill_model(TimeBridge(96, 24, 7, 12, 3, 16, 32, 4, (1, 1, 1), stable=3))


def trajectory():
    model, losses = tiny(), []
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(20):
        x, marks = given(f"step{step}.x", (2, 96, 7)), 0.5 * given(f"step{step}.mark", (2, 96, MARKS))
        target = 0.5 * x[:, :24] + 0.1 * given(f"step{step}.y", (2, 24, 7))
        optimizer.zero_grad()
        loss = both(model(x, marks), target)
        loss.backward()
        optimizer.step()
        losses.append(round(loss.item(), 8))
    return losses


def calendar(text):
    time = datetime.datetime.fromisoformat(text)
    day = time.timetuple().tm_yday
    return [time.hour / 23 - 0.5, time.weekday() / 6 - 0.5, (time.day - 1) / 30 - 0.5, (day - 1) / 365 - 0.5]


def drawn():
    """Twenty months of hours of seven series, in tenths: tests/reference/forecast.rs writes the same text."""
    start, lines = datetime.datetime(2016, 7, 1), ["date,HUFL,HULL,MUFL,MULL,LUFL,LULL,OT"]
    for hour in range(14400):
        tenths = [hour * (17 + 6 * c) % 997 - 400 + hour // 24 * (3 + c) % 53 * 10 for c in range(7)]
        values = ",".join(f"{value / 10:.1f}" for value in tenths)
        lines.append(f"{start + datetime.timedelta(hours=hour)},{values}")
    return "\n".join(lines) + "\n"


def steps_on(text, seen, ahead, batch):
    """Twelve months of hours train; 20 steps of windows."""
    rows = list(csv.reader(text.splitlines()))[1:]
    series, marks = np.array([row[1:] for row in rows], np.float64), np.array([calendar(row[0]) for row in rows])
    mean, std = series[:8640].mean(0), series[:8640].std(0)
    scaled = torch.tensor((series - mean) / std, dtype=torch.float32)
    features = torch.tensor(marks, dtype=torch.float32)
    windows = 8640 - seen - ahead + 1
    model = fill_model(made("ETTh1", seen, ahead, stable=6)).float()
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=2e-4), []
    for step in range(20):
        starts = [(step * batch + i) * 37 % windows for i in range(batch)]
        x = torch.stack([scaled[at : at + seen] for at in starts])
        m = torch.stack([features[at : at + seen] for at in starts])
        target = torch.stack([scaled[at + seen : at + seen + ahead] for at in starts])
        optimizer.zero_grad()
        loss = both(model(x, m), target)
        loss.backward()
        optimizer.step()
        losses.append(round(loss.item(), 6))
    return {
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
        "rows": len(rows),
        "train_mean": mean.tolist(),
        "train_std_population": std.tolist(),
        "first_std_row": ((series - mean) / std)[0].tolist(),
        "first_mark": marks[0].tolist(),
        "mark_row_8639": marks[8639].tolist(),
        f"nwin_train_{seen}_{ahead}": windows,
        "losses_20_steps_f32": losses,
        "recipe": f"filled weights, attn_dropout 0, Adam 2e-4, batch {batch}, step s uses windows ((s*{batch}+i)*37) mod "
        f"nwin, i=0..{batch - 1}; alpha .35",
    }


model, states = tiny(), []
x, marks = given("input.x", (2, 96, 7)), 0.5 * given("input.mark", (2, 96, MARKS))
target = given("input.y", (2, 24, 7))
output = model(x, marks, states)
loss, (time, frequency) = both(output, target), parts(output, target)
loss.backward()
named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.grad is not None]
with torch.device("meta"):
    traffic = made("traffic", 720, 96)
losses = trajectory()
write({
    "param_counts": counts(),
    "traffic_96_keys": keys(traffic),
    "tiny_params": parameters(model),
    "tiny_keys": keys(model),
    "tiny": {
        "output": summary(output),
        "loss": loss.item(),
        "t_loss": time.item(),
        "f_loss": frequency.item(),
        "grads": {name: gradient(parameter) for name, parameter in named},
        "after_embedding": summary(states[0]),
        **{f"after_layer_{i}": summary(state) for i, state in enumerate(states[1:])},
        "adam_lr1e-3_losses_20_steps": losses,
    },
    "adam_lr1e-3_losses_20_steps": losses,
    "etth1": steps_on(pathlib.Path(sys.argv[1]).read_bytes().decode(), 720, 96, 64),
    "drawn": steps_on(drawn(), 96, 24, 8),
}, indent=1)
