"""Writes sync_batchnorm.json: BatchNorm2d of PyTorch 2.15 over a whole batch, in f64. SyncBatchNorm gives its parts the same
numbers, but needs a GPU for each.

    python tests/golden/sync_batchnorm.py > tests/golden/sync_batchnorm.json
"""

from torch import nn
from torch.nn import functional as F

from filled import fill_model, given, gradient, summary, write

SHAPE = (7, 4, 3, 3)


def leaf(name):
    return given(name, SHAPE).float().double().requires_grad_()


def measured(norm, x, y, inputs, weights):
    # The parts of the batch are contiguous; channels come last.
    last = lambda tensor: tensor.permute(0, 2, 3, 1).contiguous()
    (y * given("r", SHAPE).float().double()).sum().backward()
    return {
        "y": summary(last(y)),
        "inputs": [summary(last(tensor.grad)) for tensor in inputs],
        "weights": [gradient(weight) for weight in weights],
        "running_mean": norm.running_mean.tolist(),
        "running_var": norm.running_var.tolist(),
    }


def plain():
    norm, x = fill_model(nn.BatchNorm2d(4)), leaf("x")
    return measured(norm, x, norm(x), [x], [norm.weight, norm.bias])


def with_residual():
    norm, x, residual = fill_model(nn.BatchNorm2d(4)), leaf("x"), leaf("residual")
    return measured(norm, x, F.relu(norm(x) + residual), [x, residual], [norm.weight, norm.bias])


def after_convolution():
    layers = fill_model(nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)))
    conv, norm, x = *layers, leaf("x")
    return measured(norm, x, F.relu(norm(conv(x))), [x], [conv.weight, norm.weight, norm.bias])


write({"plain": plain(), "with_residual": with_residual(), "after_convolution": after_convolution()}, indent=1)
