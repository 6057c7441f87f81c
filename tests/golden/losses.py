"""Writes losses.json: losses of PyTorch 2.15 and torchvision 0.29, and their gradients, in f64.

    python tests/golden/losses.py > tests/golden/losses.json
"""

import torch
from torch.nn import functional as F
from torchvision.ops import sigmoid_focal_loss

from filled import given, write

outputs = (3 * given("loss.outputs", (4, 3))).float().double()
targets = given("loss.targets", (4, 3)).float().double()
some_classes = (given("loss.classes", (4, 3)) > 0).double()
mixed = given("loss.mixed", (4, 3)).softmax(1).float().double()
labels = torch.tensor([2, 0, 0, 1])
some_labels = torch.tensor([2, 0, -100, 1])
weights = torch.tensor([0.2, 1.0, 3.5], dtype=torch.float64)


def loss(kind, targets):
    """Its value, and its gradient in the outputs."""
    variable = outputs.clone().requires_grad_()
    value = kind(variable, targets)
    value.backward()
    return {"value": value.item(), "gradient": variable.grad.flatten().tolist()}


def focal(gamma, weight=None):
    """Cross-entropy times (1 - p)^gamma, a weighted mean as that of `torch.nn.CrossEntropyLoss`."""

    def mean(outputs, labels):
        counts = labels != -100
        outputs, labels = outputs[counts], labels[counts]
        losses = F.cross_entropy(outputs, labels, reduction="none")
        weighed = torch.ones_like(losses) if weight is None else weight[labels]
        return (weighed * (1 - (-losses).exp()) ** gamma * losses).sum() / weighed.sum()

    return mean


def sigmoid_focal(**options):
    return lambda outputs, targets: sigmoid_focal_loss(outputs, targets, reduction="mean", **options)


entropy = torch.nn.CrossEntropyLoss
write({
    "outputs": outputs.flatten().tolist(),
    "targets": targets.flatten().tolist(),
    "some_classes": some_classes.flatten().tolist(),
    "mixed": mixed.flatten().tolist(),
    "labels": labels.tolist(),
    "some_labels": some_labels.tolist(),
    "huber": loss(torch.nn.HuberLoss(), targets),
    "huber_d.3": loss(torch.nn.HuberLoss(delta=0.3), targets),
    "smooth_l1": loss(torch.nn.SmoothL1Loss(), targets),
    "smooth_l1_b.3": loss(torch.nn.SmoothL1Loss(beta=0.3), targets),
    "cross_entropy": loss(entropy(), labels),
    "cross_entropy_w": loss(entropy(weight=weights), labels),
    "cross_entropy_w_s.1": loss(entropy(weight=weights, label_smoothing=0.1), labels),
    "cross_entropy_w_ignored": loss(entropy(weight=weights, label_smoothing=0.1), some_labels),
    "cross_entropy_w_mixed": loss(entropy(weight=weights), mixed),
    "cross_entropy_w_s.1_mixed": loss(entropy(weight=weights, label_smoothing=0.1), mixed),
    "focal": loss(focal(2.0), labels),
    "focal_w": loss(focal(0.5, weights), some_labels),
    "bce_with_logits": loss(torch.nn.BCEWithLogitsLoss(), some_classes),
    "bce_with_logits_w": loss(torch.nn.BCEWithLogitsLoss(pos_weight=weights), some_classes),
    "sigmoid_focal": loss(sigmoid_focal(), some_classes),
    "sigmoid_focal_g.5": loss(sigmoid_focal(gamma=0.5, alpha=0.6), some_classes),
})
