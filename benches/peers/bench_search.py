"""The least values that Optuna finds of the functions of `benches/search.rs`: a JSON line per function and sampler."""
import json
import math
import sys
import warnings

import optuna
from optuna.samplers import GPSampler, TPESampler

optuna.logging.set_verbosity(optuna.logging.ERROR)
warnings.filterwarnings("ignore")
SEEDS = int(sys.argv[1]) if len(sys.argv) > 1 else 30
ALPHA = [1.0, 1.2, 3.0, 3.2]
A = [[10, 3, 17, 3.5, 1.7, 8], [0.05, 10, 17, 0.1, 8, 14], [3, 3.5, 1.7, 10, 17, 8], [17, 8, 0.05, 10, 0.1, 14]]
P = [
    [0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886],
    [0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991],
    [0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.6650],
    [0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381],
]


def branin(trial):
    x, y = trial.suggest_float("x1", -5, 10), trial.suggest_float("x2", 0, 15)
    valley = y - 5.1 / (4 * math.pi**2) * x * x + 5 / math.pi * x - 6
    return valley**2 + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10


def hartmann6(trial):
    x = [trial.suggest_float(f"x{i}", 0, 1) for i in range(1, 7)]
    return -sum(s * math.exp(-sum(a * (x - p) ** 2 for a, x, p in zip(a, x, p))) for s, a, p in zip(ALPHA, A, P))


def rosenbrock4(trial):
    x = [trial.suggest_float(f"x{i}", -2, 2) for i in range(1, 5)]
    return sum(100 * (b - a * a) ** 2 + (1 - a) ** 2 for a, b in zip(x, x[1:]))


def ackley10(trial):
    x = [trial.suggest_float(f"x{i}", -5, 5) for i in range(1, 11)]
    far = math.sqrt(sum(v * v for v in x) / len(x))
    waves = sum(math.cos(2 * math.pi * v) for v in x) / len(x)
    return -20 * math.exp(-0.2 * far) - math.exp(waves) + 20 + math.e


def mixed(trial):
    lr = math.log10(trial.suggest_float("lr", 1e-5, 1, log=True))
    layers = trial.suggest_int("layers", 1, 8)
    batch = trial.suggest_categorical("batch", [16, 32, 64, 128, 256])
    shift = {"relu": 0.0, "gelu": 0.02, "tanh": 0.15}[trial.suggest_categorical("activation", ["relu", "gelu", "tanh"])]
    dropout = trial.suggest_float("dropout", 0, 0.9)
    best_lr = -3 + 0.5 * (math.log2(batch) - 6)
    return 0.3 * (lr - best_lr) ** 2 + 0.02 * (layers - 5) ** 2 + shift + (dropout - 0.1 * layers / 5) ** 2


def conditional(trial):
    optimizer = trial.suggest_categorical("optimizer", ["sgd", "adam"])
    width = 0.05 * (math.log2(trial.suggest_int("width", 32, 512, step=32)) - 7) ** 2
    if optimizer == "sgd":
        lr = trial.suggest_float("sgd_lr", 1e-4, 1, log=True)
        return width + (math.log10(lr) + 1) ** 2 + 4 * (trial.suggest_float("momentum", 0, 1) - 0.9) ** 2
    return width + 0.1 + 0.5 * (math.log10(trial.suggest_float("adam_lr", 1e-5, 0.1, log=True)) + 3) ** 2


SAMPLERS = {
    "tpe": lambda seed: TPESampler(seed=seed, group=True),
    "gp": lambda seed: GPSampler(seed=seed),
}
# GPSampler draws parameters with conditions independently, by random search.
TRIALS = {branin: 60, hartmann6: 100, rosenbrock4: 100, ackley10: 100, mixed: 60, conditional: 60}


def found(function, trials, sampler):
    study = optuna.create_study(sampler=sampler)
    study.optimize(function, n_trials=trials)
    return study.best_value


for function, trials in TRIALS.items():
    for name, sampler in SAMPLERS.items():
        values = [found(function, trials, sampler(seed)) for seed in range(SEEDS)]
        print(json.dumps({"problem": function.__name__, "sampler": name, "found": values}), flush=True)
