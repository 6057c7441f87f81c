"""Writes losses.json: losses of PyTorch 2.15 and their gradients, in f64.

    python tests/golden/losses.py > tests/golden/losses.json
"""

import torch

from filled import given, write

outputs = (3 * given("loss.outputs", (4, 3))).float().double()
targets = given("loss.targets", (4, 3)).float().double()


def loss(kind):
    """Its value, and its gradient in the outputs."""
    variable = outputs.clone().requires_grad_()
    value = kind(variable, targets)
    value.backward()
    return {"value": value.item(), "gradient": variable.grad.flatten().tolist()}


write({
    "outputs": outputs.flatten().tolist(),
    "targets": targets.flatten().tolist(),
    "huber": loss(torch.nn.HuberLoss()),
    "huber_d.3": loss(torch.nn.HuberLoss(delta=0.3)),
})
