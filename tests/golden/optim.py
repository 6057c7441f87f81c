"""Writes optim.json: optimizers, schedules and the gradient scaler of PyTorch 2.15, and timm 1.0.31's Lamb, on a vector of
six and other tensors.

    python tests/golden/optim.py > tests/golden/optim.json
"""

import inspect

import torch
from torch.optim import lr_scheduler as schedulers

from timm.optim import Lamb

from filled import fill, given, write

STEPS = 5


def rounded(values):
    return [round(float(value), 10) for value in values]


def steps(optimizer):
    """The vector after each step, in f64."""
    vector = torch.nn.Parameter(given("opt.p", (6,)))
    optimizer, after = optimizer([vector]), []
    for step in range(STEPS):
        vector.grad = given(f"opt.g{step}", (6,))
        optimizer.step()
        after.append(rounded(vector.detach()))
    return after


def tensor_steps(optimizer, shape):
    """The tensor after each step, in f64."""
    tensor, after = torch.nn.Parameter(given("opt.w", shape)), []
    optimizer = optimizer([tensor])
    for step in range(STEPS):
        tensor.grad = given(f"opt.wg{step}", shape)
        optimizer.step()
        after.append(rounded(tensor.detach().flatten()))
    return after


# PyTorch's Muon, but for its bf16: the iteration in the precision of the gradient.
muon = torch.optim.Muon
iteration = inspect.getsource(torch.optim._muon._zeropower_via_newtonschulz)
exec(iteration.replace("torch.bfloat16", "grad.dtype"), vars(torch.optim._muon))


def grouped():
    """Two vectors after each step of AdamW with groups; the second is unfrozen after two steps."""
    p, q = (torch.nn.Parameter(given(name, (6,))) for name in ("opt.p", "opt.q"))
    groups = [{"params": [p], "weight_decay": 0.1}, {"params": [q], "lr": 0.001, "weight_decay": 0.0}]
    optimizer, after = torch.optim.AdamW(groups, lr=0.01), []
    for step in range(STEPS):
        p.grad = given(f"opt.g{step}", (6,))
        q.grad = given(f"opt.g{step}", (6,)) if step >= 2 else None
        optimizer.step()
        after.append([rounded(p.detach()), rounded(q.detach())])
    return after


class Lion(torch.optim.Optimizer):
    """Algorithm 2 of Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms"."""

    def __init__(self, params, lr, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            (beta1, beta2), lr, decay = group["betas"], group["lr"], group["weight_decay"]
            for p in group["params"]:
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                direction = (beta1 * m + (1 - beta1) * p.grad).sign()
                p -= lr * (direction + decay * p)
                m.mul_(beta2).add_(p.grad, alpha=1 - beta2)


class Adan(torch.optim.Optimizer):
    """Algorithm 1 of Xie et al. 2022, "Adan: Adaptive Nesterov Momentum Algorithm for Faster Optimizing Deep Models", whose
    betas are 1 minus these, with the bias corrections of its authors' implementation."""

    def __init__(self, params, lr, betas=(0.98, 0.92, 0.99), eps=1e-8, weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            (beta1, beta2, beta3), lr = group["betas"], group["lr"]
            for p in group["params"]:
                g, state = p.grad, self.state[p]
                if not state:
                    state.update(t=0, m=torch.zeros_like(p), v=torch.zeros_like(p), n=torch.zeros_like(p), last=g)
                state["t"] += 1
                difference, state["last"] = g - state["last"], g
                m = state["m"].lerp_(g, 1 - beta1) / (1 - beta1 ** state["t"])
                v = state["v"].lerp_(difference, 1 - beta2) / (1 - beta2 ** state["t"])
                n = state["n"].lerp_((g + beta2 * difference) ** 2, 1 - beta3) / (1 - beta3 ** state["t"])
                p -= lr / (n.sqrt() + group["eps"]) * (m + beta2 * v)
                p /= 1 + lr * group["weight_decay"]


def rates(n, schedule, lr=0.1):
    """The learning rate of each of n steps."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr, momentum=0.9)
    schedule, seen = schedule(optimizer), []
    for _ in range(n):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return seen


def sequence(optimizer):
    warmup = schedulers.LinearLR(optimizer, start_factor=0.01, total_iters=5)
    cosine = schedulers.CosineAnnealingLR(optimizer, T_max=15)
    return schedulers.SequentialLR(optimizer, [warmup, cosine], milestones=[5])


def one_cycle_of_adam():
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=1e-3)
    schedule, seen = schedulers.OneCycleLR(optimizer, max_lr=2e-4, total_steps=20, pct_start=0.2), []
    for _ in range(20):
        group = optimizer.param_groups[0]
        seen.append([round(group["lr"], 10), round(group["betas"][0], 6)])
        optimizer.step()
        schedule.step()
    return seen


def plateau(metrics):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    schedule, seen = schedulers.ReduceLROnPlateau(optimizer, factor=0.5, patience=2, threshold=1e-4), []
    for metric in metrics:
        schedule.step(metric)
        seen.append([metric, optimizer.param_groups[0]["lr"]])
    return seen


def scaler(bad):
    """[step, scale afterwards, weights afterwards] where the gradients of some steps are bad."""
    weights = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weights], lr=0.1)
    scaler, seen = torch.amp.GradScaler("cpu", init_scale=65536.0, growth_interval=3), []
    for step in range(12):
        optimizer.zero_grad()
        scaler.scale(weights.sum()).backward()
        weights.grad[0] *= bad.get(step, 1.0)
        scaler.step(optimizer)
        scaler.update()
        seen.append([step, scaler.get_scale(), [round(float(weight), 6) for weight in weights]])
    return seen


sgd, adam, adamw = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW
rmsprop, adagrad, nadam = torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.NAdam
adafactor, EPS = torch.optim.Adafactor, (torch.finfo(torch.float32).eps, 1e-3)
inf, nan = float("inf"), float("nan")
write({
    "param0": list(fill("opt.p", 6)),
    "grads": [list(fill(f"opt.g{step}", 6)) for step in range(STEPS)],
    "sgd_lr.1": steps(lambda p: sgd(p, lr=0.1)),
    "sgd_lr.1_m.9": steps(lambda p: sgd(p, lr=0.1, momentum=0.9)),
    "sgd_lr.1_m.9_wd.01_nesterov": steps(lambda p: sgd(p, lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True)),
    "sgd_lr.1_m.9_damp.5": steps(lambda p: sgd(p, lr=0.1, momentum=0.9, dampening=0.5)),
    "adam_lr.01": steps(lambda p: adam(p, lr=0.01)),
    "adam_lr.01_wd.1_L2": steps(lambda p: adam(p, lr=0.01, weight_decay=0.1)),
    "adamw_lr.01_wd.1": steps(lambda p: adamw(p, lr=0.01, weight_decay=0.1)),
    "adamw_b.95_.999_eps1e-8_wd1e-6_lr1e-4": steps(lambda p: adamw(p, lr=1e-4, betas=(0.95, 0.999), weight_decay=1e-6)),
    "adam_lr.01_wd.1_amsgrad": steps(lambda p: adam(p, lr=0.01, betas=(0.5, 0.6), weight_decay=0.1, amsgrad=True)),
    "adamw_lr.01_wd.1_amsgrad": steps(lambda p: adamw(p, lr=0.01, betas=(0.5, 0.6), weight_decay=0.1, amsgrad=True)),
    "rmsprop_lr.01": steps(lambda p: rmsprop(p, lr=0.01)),
    "rmsprop_lr.01_a.9_m.9_wd.01": steps(lambda p: rmsprop(p, lr=0.01, alpha=0.9, momentum=0.9, weight_decay=0.01)),
    "adagrad_lr.1": steps(lambda p: adagrad(p, lr=0.1)),
    "adagrad_lr.1_decay.1_wd.01_start.1": steps(
        lambda p: adagrad(p, lr=0.1, lr_decay=0.1, weight_decay=0.01, initial_accumulator_value=0.1)),
    "nadam_lr.01": steps(lambda p: nadam(p, lr=0.01)),
    "nadam_lr.01_b.8_.99_wd.1_md.1": steps(
        lambda p: nadam(p, lr=0.01, betas=(0.8, 0.99), weight_decay=0.1, momentum_decay=0.1)),
    "nadam_lr.01_wd.1_decoupled": steps(lambda p: nadam(p, lr=0.01, weight_decay=0.1, decoupled_weight_decay=True)),
    "tensor0": list(fill("opt.w", 24)),
    "tensor_grads": [list(fill(f"opt.wg{step}", 24)) for step in range(STEPS)],
    "lamb_lr.01": tensor_steps(lambda p: Lamb(p, lr=0.01, max_grad_norm=None), (4, 6)),
    "lamb_lr.01_wd0_adapt_clip": tensor_steps(
        lambda p: Lamb(p, lr=0.01, weight_decay=0.0, always_adapt=True, trust_clip=True, max_grad_norm=None), (4, 6)),
    "lamb_lr.01_wd0_b.8_.99": tensor_steps(
        lambda p: Lamb(p, lr=0.01, weight_decay=0.0, betas=(0.8, 0.99), max_grad_norm=None), (4, 6)),
    "adafactor_lr.1_24": tensor_steps(lambda p: adafactor(p, lr=0.1, eps=EPS), (24,)),
    "adafactor_lr.1_4x6_wd.1": tensor_steps(lambda p: adafactor(p, lr=0.1, weight_decay=0.1, eps=EPS), (4, 6)),
    "adafactor_lr1_2x3x4_d2": tensor_steps(lambda p: adafactor(p, lr=1.0, d=2.0, beta2_decay=-0.5, eps=EPS), (2, 3, 4)),
    "muon_lr.02_4x6": tensor_steps(lambda p: muon(p, lr=0.02), (4, 6)),
    "muon_lr.02_6x4_m.9_wd0": tensor_steps(
        lambda p: muon(p, lr=0.02, momentum=0.9, nesterov=False, weight_decay=0.0), (6, 4)),
    "muon_lr.02_2x12_rms": tensor_steps(lambda p: muon(p, lr=0.02, adjust_lr_fn="match_rms_adamw"), (2, 12)),
    "param1": list(fill("opt.q", 6)),
    "adamw_groups": grouped(),
    "lion_lr.01": steps(lambda p: Lion(p, lr=0.01)),
    "lion_lr.01_b.95_.98_wd.1": steps(lambda p: Lion(p, lr=0.01, betas=(0.95, 0.98), weight_decay=0.1)),
    "adan_lr.01": steps(lambda p: Adan(p, lr=0.01)),
    "adan_lr.01_b.9_.8_.95_wd.1": steps(lambda p: Adan(p, lr=0.01, betas=(0.9, 0.8, 0.95), weight_decay=0.1)),
    "onecycle_max.1_total20_pct.2": rates(20, lambda o: schedulers.OneCycleLR(o, max_lr=0.1, total_steps=20, pct_start=0.2)),
    "onecycle_max.1_total20_pct.23_linear": rates(20, lambda o: schedulers.OneCycleLR(
        o, max_lr=0.1, total_steps=20, pct_start=0.23, anneal_strategy="linear", cycle_momentum=False, div_factor=5.0,
        final_div_factor=1 / 0.35)),
    "cosine_T10_eta0": rates(11, lambda o: schedulers.CosineAnnealingLR(o, T_max=10)),
    "step_3_.1": rates(10, lambda o: schedulers.StepLR(o, step_size=3)),
    "multistep_2_5_.1": rates(8, lambda o: schedulers.MultiStepLR(o, milestones=[2, 5])),
    "linear_start.01_iters5_then_cosine_T15(SequentialLR)": rates(20, sequence),
    "exponential_.9": rates(6, lambda o: schedulers.ExponentialLR(o, gamma=0.9)),
    "plateau_f.5_p2_thr1e-4rel": plateau([1.0, 0.9, 0.91, 0.92, 0.93, 0.94, 0.95, 0.96, 0.8, 0.81, 0.82, 0.83, 0.84]),
    "gradscaler_gi3_inf_at_4_5_9_nan_at_10": scaler({4: inf, 5: inf, 9: inf, 10: nan}),
    "onecycle_adam_max2e-4_total20_pct.2 (lr,beta1)": one_cycle_of_adam(),
})
