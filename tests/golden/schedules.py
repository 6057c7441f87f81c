"""Writes schedules.json: the learning rates of each step with the schedules of PyTorch 2.15 and transformers 5.24.

    python tests/golden/schedules.py > tests/golden/schedules.json
"""

import json

import torch
import transformers
from torch.optim import lr_scheduler as schedulers

STEPS, WARMUP, LR = 24, 4, 0.1


def rates(schedule):
    """The rate of each step, and that of the step after the last."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=LR)
    schedule, seen = schedule(optimizer), []
    for _ in range(STEPS + 1):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return seen


def wsd(decay_type, ratio):
    return lambda o: transformers.get_wsd_schedule(
        o, num_warmup_steps=WARMUP, num_decay_steps=6, num_stable_steps=STEPS - WARMUP - 6, decay_type=decay_type,
        min_lr_ratio=ratio)


recorded = {
    "polynomial_2": rates(lambda o: schedulers.PolynomialLR(o, total_iters=STEPS, power=2.0)),
    "restarts_5": rates(lambda o: schedulers.CosineAnnealingWarmRestarts(o, T_0=5, eta_min=0.01)),
    "restarts_3_2": rates(lambda o: schedulers.CosineAnnealingWarmRestarts(o, T_0=3, T_mult=2)),
    "linear_warmup": rates(lambda o: transformers.get_linear_schedule_with_warmup(o, WARMUP, STEPS)),
    "polynomial_.5_warmup": rates(lambda o: transformers.get_polynomial_decay_schedule_with_warmup(
        o, WARMUP, STEPS, lr_end=0.02, power=0.5)),
    "inverse_sqrt_warmup": rates(lambda o: transformers.get_inverse_sqrt_schedule(o, WARMUP)),
    "inverse_sqrt_9_warmup": rates(lambda o: transformers.get_inverse_sqrt_schedule(o, WARMUP, timescale=9)),
    "wsd_linear_warmup": rates(wsd("linear", 0.0)),
    "wsd_cosine_warmup": rates(wsd("cosine", 0.1)),
    "wsd_1-sqrt_warmup": rates(wsd("1-sqrt", 0.0)),
}
print("{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(seen)}" for name, seen in recorded.items()) + "\n}")
