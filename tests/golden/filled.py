"""What the generators beside this file share: weights and inputs that follow from their names alone, and how tensors are
summed up. `tests/support/golden.rs` has the same in Rust."""

import json
import math
import sys

import numpy as np
import torch


def fill(name, n):
    """n numbers in [-1, 1): splitmix64 of the name's FNV-1a hash."""
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = (h ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    z = np.uint64(h) + np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return (z >> np.uint64(40)).astype(np.float64) / 2**23 - 1


def given(name, shape, dtype=torch.float64):
    return torch.from_numpy(fill(name, math.prod(shape))).to(dtype).reshape(shape)


def whole(name, shape, below):
    """Whole numbers from 0 to below - 1."""
    return ((given(name, shape) + 1) / 2 * below).floor().long()


def ruled(name, shape):
    """A parameter's or buffer's value, rounded to f32 as weights are."""
    u = given(name, shape)
    if len(shape) > 1:
        u = u / math.sqrt(math.prod(shape[1:]))
    elif name.endswith("running_var"):
        u = 1 + 0.5 * u
    elif name.endswith(".weight"):
        u = 1 + 0.1 * u
    else:
        u = 0.1 * u
    return u.float().double()


def fill_model(model, skip=()):
    """The model in f64 with ruled values; integer counters are 0."""
    model.double()
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if name not in skip and value.is_floating_point():
                value.copy_(ruled(name, tuple(value.shape)))
    return model


def check(tensor):
    flat = tensor.detach().double().flatten()
    return float(flat @ torch.from_numpy(fill("check", flat.numel())))


def summary(tensor):
    flat = tensor.detach().double().flatten()
    return {
        "shape": list(tensor.shape),
        "mean": float(flat.mean()),
        "rms": float(flat.square().mean().sqrt()),
        "check": check(tensor),
        "first": [round(float(v), 9) for v in flat[:6]],
    }


def gradient(parameter):
    return {"l2": float(parameter.grad.norm()), "check": check(parameter.grad)}


def keys(model):
    return [[name, list(value.shape)] for name, value in model.state_dict().items()]


def parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


def write(golden, indent=None):
    json.dump(golden, sys.stdout, indent=indent)
    print()
