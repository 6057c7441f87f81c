"""Writes bf16.json: losses and gradient norms of 20 steps under PyTorch 2.15's autocast to bf16 on the CPU, and the same
in f64, of the GPT of gpt.py and of a perceptron.

    python tests/golden/bf16.py > tests/golden/bf16.json
"""

import torch
from torch import nn
from torch.nn import functional as F

import gpt
from filled import fill_model, given, whole, write

STEPS, CLASSES = 20, 6


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(60, 64), nn.Linear(64, 64), nn.Linear(64, CLASSES)])

    def forward(self, x):
        x = x.flatten(1)
        for layer in self.layers[:-1]:
            x = layer(x).relu()
        return self.layers[-1](x)


def gpt_loss(model, step, dtype):
    return gpt.loss(model, whole(f"step{step}.ids", (4, gpt.LENGTH + 1), gpt.VOCABULARY))[1]


def mlp_loss(model, step, dtype):
    x, y = given(f"step{step}.x", (32, 3, 4, 5), dtype), whole(f"step{step}.y", (32,), CLASSES)
    return F.cross_entropy(model(x), y)


def trajectory(model, loss, dtype, autocast):
    """Of AdamW, which decays matrices only; norms are those before clipping."""
    model = model.to(dtype)
    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99))
    losses, norms = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            value = loss(model, step, dtype)
        value.backward()
        norms.append(round(float(nn.utils.clip_grad_norm_(model.parameters(), 1.0)), 7))
        losses.append(round(value.item(), 8))
        optimizer.step()
    return {"losses": losses, "norms": norms}


def both(new, loss):
    return {
        "bf16": trajectory(new(), loss, torch.float32, True),
        "f64": trajectory(new(), loss, torch.float64, False),
    }


write({"gpt": both(gpt.tiny, gpt_loss), "mlp": both(lambda: fill_model(Mlp()), mlp_loss)}, indent=1)
