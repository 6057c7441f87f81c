"""Writes gpt.json: nanoGPT's model, written again in PyTorch 2.15, in f64.

    python tests/golden/gpt.py > tests/golden/gpt.json
"""

import torch
from torch import nn
from torch.nn import functional as F

from filled import fill_model, gradient, keys, parameters, summary, whole, write

VOCABULARY, LENGTH = 65, 16


class Norm(nn.Module):
    def __init__(self, width, bias):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x):
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-5)


class Attention(nn.Module):
    def __init__(self, width, heads, bias):
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(width, 3 * width, bias)
        self.c_proj = nn.Linear(width, width, bias)

    def forward(self, x):
        b, t, d = x.shape
        split = lambda part: part.view(b, t, self.heads, d // self.heads).transpose(1, 2)
        q, k, v = map(split, self.c_attn(x).split(d, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(b, t, d))


class Mlp(nn.Module):
    def __init__(self, width, bias):
        super().__init__()
        self.c_fc = nn.Linear(width, 4 * width, bias)
        self.c_proj = nn.Linear(4 * width, width, bias)

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x)))


class Block(nn.Module):
    def __init__(self, width, heads, bias):
        super().__init__()
        self.ln_1 = Norm(width, bias)
        self.attn = Attention(width, heads, bias)
        self.ln_2 = Norm(width, bias)
        self.mlp = Mlp(width, bias)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt(nn.Module):
    def __init__(self, vocabulary, length, layers, heads, width, bias=True):
        super().__init__()
        self.transformer = nn.ModuleDict({
            "wte": nn.Embedding(vocabulary, width),
            "wpe": nn.Embedding(length, width),
            "h": nn.ModuleList(Block(width, heads, bias) for _ in range(layers)),
            "ln_f": Norm(width, bias),
        })
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.lm_head.weight = self.transformer.wte.weight

    def forward(self, ids):
        x = self.transformer.wte(ids) + self.transformer.wpe.weight[: ids.shape[1]]
        for block in self.transformer.h:
            x = block(x)
        return self.lm_head(self.transformer.ln_f(x))


def loss(model, ids):
    logits = model(ids[:, :-1])
    return logits, F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def tiny():
    model = Gpt(VOCABULARY, LENGTH, layers=2, heads=2, width=32)
    return fill_model(model, skip=["lm_head.weight"])


def counts(*sizes, bias=True):
    with torch.device("meta"):
        model = Gpt(*sizes, bias=bias)
    total = parameters(model)
    return {"total": total, "non_position": total - model.transformer.wpe.weight.numel()}


def trajectory(model):
    """Losses and gradient norms before clipping of 20 steps of AdamW."""
    named = list(model.named_parameters())
    groups = [
        {"params": [p for _, p in named if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for _, p in named if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99))
    losses, norms = [], []
    for step in range(20):
        optimizer.zero_grad()
        value = loss(model, whole(f"step{step}.ids", (4, LENGTH + 1), VOCABULARY))[1]
        value.backward()
        norms.append(round(float(nn.utils.clip_grad_norm_(model.parameters(), 1.0)), 7))
        losses.append(round(value.item(), 8))
        optimizer.step()
    return losses, norms


if __name__ == "__main__":
    model = tiny()
    ids = whole("input.ids", (3, LENGTH + 1), VOCABULARY)
    logits, value = loss(model, ids)
    value.backward()
    losses, norms = trajectory(tiny())
    write({
        "param_counts_total_tied": {
            "tiny_test_v65_b16_l2_h2_d32": counts(65, 16, 2, 2, 32),
            "cpu_shakespeare_l4_h4_d128_b64": counts(65, 64, 4, 4, 128, bias=False),
            "shakespeare_char_l6_h6_d384_b256_biasFalse": counts(65, 256, 6, 6, 384, bias=False),
            "gpt2_124M_v50257": counts(50257, 1024, 12, 12, 768),
            "gpt2_v50304_biasFalse": counts(50304, 1024, 12, 12, 768, bias=False),
        },
        "keys_tiny": keys(model),
        "tiny": {
            "ids": ids.tolist(),
            "logits": summary(logits),
            "loss": value.item(),
            "grads": {name: gradient(parameter) for name, parameter in model.named_parameters()},
            "adamw_losses_20": losses,
            "grad_norm_before_clip": norms,
        },
    }, indent=1)
