"""Writes preferences.json: losses of TRL's `DPOTrainer` and `CPOTrainer` (SimPO) and of the ORPO paper, written out with
PyTorch in f64, their gradients, and log-probabilities of texts by `log_softmax` and `gather`.

    python tests/golden/preferences.py > tests/golden/preferences.json
"""

import math

import torch
from torch.nn import functional as F

from filled import given, whole, write

N = 6
tokens = whole("preference.tokens", (N, 2), 12) + 1
# Means per token of about -1.5, and a reference nearby.
policy = ((given("preference.policy", (N, 2)) - 1.5) * tokens).float().double()
reference = (policy + given("preference.reference", (N, 2)) * 2).float().double()
# One pair with large ratios.
policy[5] = torch.tensor([-90.0, -2.0])
reference[5] = torch.tensor([-3.0, -60.0])


def dpo(policy, beta=0.1, loss_type="sigmoid", label_smoothing=0.0):
    """As in `DPOTrainer.dpo_loss`; IPO takes means over tokens."""
    ours, theirs = policy, reference
    if loss_type == "ipo":
        ours, theirs = ours / tokens, theirs / tokens
    chosen, rejected = (ours - theirs).unbind(1)
    logits = chosen - rejected
    rewards = beta * (ours - theirs)
    if loss_type == "sigmoid":
        losses = -F.logsigmoid(beta * logits) * (1 - label_smoothing) - F.logsigmoid(-beta * logits) * label_smoothing
    elif loss_type == "robust":
        losses = (
            -F.logsigmoid(beta * logits) * (1 - label_smoothing) + F.logsigmoid(-beta * logits) * label_smoothing
        ) / (1 - 2 * label_smoothing)
    elif loss_type == "exo_pair":
        label_smoothing = label_smoothing or 1e-3
        losses = (beta * logits).sigmoid() * (F.logsigmoid(beta * logits) - math.log(1 - label_smoothing)) + (
            -beta * logits
        ).sigmoid() * (F.logsigmoid(-beta * logits) - math.log(label_smoothing))
    elif loss_type == "hinge":
        losses = torch.relu(1 - beta * logits)
    elif loss_type == "ipo":
        losses = (logits - 1 / (2 * beta)) ** 2
    elif loss_type == "nca_pair":
        chosen, rejected = (beta * (ours - theirs)).unbind(1)
        losses = -F.logsigmoid(chosen) - 0.5 * F.logsigmoid(-chosen) - 0.5 * F.logsigmoid(-rejected)
    elif loss_type == "sppo_hard":
        losses = (chosen - 0.5 / beta) ** 2 + (rejected + 0.5 / beta) ** 2
    elif loss_type == "apo_zero":
        losses = 1 - (beta * chosen).sigmoid() + (beta * rejected).sigmoid()
    elif loss_type == "apo_down":
        losses = (beta * chosen).sigmoid() + 1 - (beta * (chosen - rejected)).sigmoid()
    return losses.mean(), rewards


def simpo(policy, beta=2.0, gamma=0.5, label_smoothing=0.0):
    """As in `CPOTrainer.cpo_loss` with `loss_type = "simpo"`."""
    means = policy / tokens
    logits = means[:, 0] - means[:, 1] - gamma / beta
    losses = -F.logsigmoid(beta * logits) * (1 - label_smoothing) - F.logsigmoid(-beta * logits) * label_smoothing
    return losses.mean(), beta * means


def orpo(policy, beta=0.1):
    """Hong et al. 2024, equations 5 to 7; the odds as in `ORPOTrainer.odds_ratio_loss`."""
    means = policy / tokens
    chosen, rejected = means.unbind(1)
    log_odds = (chosen - rejected) - (torch.log1p(-torch.exp(chosen)) - torch.log1p(-torch.exp(rejected)))
    return (-chosen - beta * F.logsigmoid(log_odds)).mean(), beta * means


def case(name, **options):
    variable = policy.clone().requires_grad_()
    value, rewards = {"dpo": dpo, "simpo": simpo, "orpo": orpo}[name](variable, **options)
    value.backward()
    return {
        "name": name,
        "options": options,
        "value": value.item(),
        "gradient": variable.grad.flatten().tolist(),
        "rewards": rewards.flatten().tolist(),
    }


def log_probs():
    """Sums over the labels that count of three texts of four tokens, and their gradient for slopes 1, -2 and 0.5."""
    logits = (3 * given("preference.logits", (3, 4, 5))).float().double().requires_grad_()
    labels = torch.tensor([[4, 0, 2, -100], [-100, -100, 1, 3], [-100, -100, -100, -100]])
    counts = labels != -100
    each = logits.log_softmax(-1).gather(2, labels.clamp(min=0).unsqueeze(2)).squeeze(2)
    sums = (each * counts).sum(1)
    (sums * torch.tensor([1.0, -2.0, 0.5])).sum().backward()
    return {
        "logits": logits.flatten().tolist(),
        "labels": labels.flatten().tolist(),
        "sums": sums.tolist(),
        "gradient": logits.grad.flatten().tolist(),
    }


write({
    "outputs": policy.flatten().tolist(),
    "targets": torch.cat([reference, tokens.double()], 1).flatten().tolist(),
    "cases": [
        case("dpo"),
        case("dpo", beta=0.5),
        case("dpo", beta=0.3, label_smoothing=0.1),
        case("dpo", loss_type="robust", label_smoothing=0.2),
        case("dpo", loss_type="robust"),
        case("dpo", loss_type="exo_pair"),
        case("dpo", loss_type="exo_pair", label_smoothing=0.1),
        case("dpo", loss_type="hinge"),
        case("dpo", loss_type="ipo"),
        case("dpo", loss_type="ipo", beta=0.7),
        case("dpo", loss_type="nca_pair"),
        case("dpo", loss_type="sppo_hard"),
        case("dpo", loss_type="apo_zero"),
        case("dpo", loss_type="apo_down"),
        case("simpo"),
        case("simpo", beta=2.5, gamma=1.0, label_smoothing=0.1),
        case("orpo"),
        case("orpo", beta=0.4),
    ],
    "log_probs": log_probs(),
})
