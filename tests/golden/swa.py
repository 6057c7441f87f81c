"""Writes swa.json: four epochs of four steps with PyTorch 2.15's `AveragedModel`, `SWALR` and `update_bn`, and with
timm 1.0's `ModelEmaV3`, in f64.

    python tests/golden/swa.py > tests/golden/swa.json
"""

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import ExponentialLR
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn

from timm.utils import ModelEmaV3

from filled import fill_model, given, summary, whole, write

EPOCHS, STEPS, START = 4, 4, 1


class Pool(nn.Module):
    def forward(self, x):
        return x.mean((2, 3))


def model():
    first = [nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU()]
    return nn.Sequential(*first, Pool(), nn.Linear(4, 3))


def named(model):
    state = model.state_dict().items()
    return {name: summary(value) for name, value in state if value.is_floating_point()}


def batch(step):
    return given(f"step{step}.x", (4, 3, 6, 6)), whole(f"step{step}.y", (4,), 3)


def case(anneal_strategy, anneal_epochs):
    net = fill_model(model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    scheduler, averaged, swa = ExponentialLR(optimizer, 0.5), AveragedModel(net), None
    lrs, losses = [], []
    for epoch in range(EPOCHS):
        if epoch == START:
            swa = SWALR(optimizer, 0.02, anneal_epochs, anneal_strategy)
        for step in range(STEPS):
            x, y = batch(epoch * STEPS + step)
            loss = F.cross_entropy(net(x), y)
            optimizer.zero_grad()
            loss.backward()
            lrs.append(optimizer.param_groups[0]["lr"])
            losses.append(loss.item())
            optimizer.step()
        if swa is None:
            scheduler.step()
        else:
            averaged.update_parameters(net)
            swa.step()
    update_bn([batch(EPOCHS * STEPS + step)[0] for step in range(STEPS)], averaged)
    averaged.eval()
    x, y = batch(99)
    with torch.no_grad():
        seen = F.cross_entropy(averaged(x), y).item()
    return {"lrs": lrs, "losses": losses, "averaged": named(averaged.module), "eval_loss": seen}


def ema(use_buffers):
    """Eight steps at a constant rate."""
    net = fill_model(model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    averaged = ModelEmaV3(net, decay=0.9, exclude_buffers=not use_buffers)
    for step in range(2 * STEPS):
        x, y = batch(step)
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
        averaged.update(net)
    averaged.module.eval()
    x, y = batch(99)
    with torch.no_grad():
        seen = F.cross_entropy(averaged.module(x), y).item()
    return {"averaged": named(averaged.module), "eval_loss": seen}


averages = {f"ema_{'with' if use_buffers else 'without'}_buffers": ema(use_buffers) for use_buffers in [False, True]}
write(averages | {f"{strategy}_{epochs}": case(strategy, epochs) for strategy, epochs in [("cos", 2), ("linear", 5)]}, indent=1)
