"""Writes ped_anova.json: the importance of parameters by Optuna 5.0.0's PED-ANOVA.

    python tests/golden/ped_anova.py > tests/golden/ped_anova.json
"""

import json
import math
import random

import optuna
from optuna.distributions import (
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

optuna.logging.set_verbosity(optuna.logging.ERROR)

LR = FloatDistribution(1e-5, 1e-1, log=True)
FLAT = {
    "lr": LR,
    "dropout": FloatDistribution(0.0, 0.5),
    "layers": IntDistribution(1, 8),
    "width": IntDistribution(8, 512, log=True),
    "crop": FloatDistribution(0.1, 1.0, step=0.1),
    "name": CategoricalDistribution(["sgd", "adamw", "lion"]),
}
# What each value of `name` has of its own.
CONDITIONAL = {
    "sgd": {"lr": FloatDistribution(1e-2, 1.0, log=True), "momentum": FloatDistribution(0.0, 0.99)},
    "adamw": {"lr": FloatDistribution(1e-5, 1e-2, log=True)},
    "lion": {},
}


def draw(dist, rng):
    if isinstance(dist, CategoricalDistribution):
        return rng.choice(dist.choices)
    if isinstance(dist, IntDistribution) and dist.log:
        low, high = math.log(dist.low - 0.5), math.log(dist.high + 0.5)
        return min(max(round(math.exp(rng.uniform(low, high))), dist.low), dist.high)
    if isinstance(dist, IntDistribution):
        return rng.randint(dist.low, dist.high)
    if dist.step is not None:
        n = round((dist.high - dist.low) / dist.step)
        return round(dist.low + dist.step * rng.randint(0, n), 12)
    if dist.log:
        return math.exp(rng.uniform(math.log(dist.low), math.log(dist.high)))
    return rng.uniform(dist.low, dist.high)


def loss(values):
    lr = abs(math.log10(values.get("lr", 1e-3)) + 3)
    name = {"sgd": 0.3, "adamw": 0.0, "lion": 0.6}[values["name"]]
    rest = 0.2 * values.get("dropout", 0.0) + 0.02 * values.get("layers", 0)
    return lr + name + rest + 0.1 * values.get("momentum", 0.0)


def case(label, n, seed, dists_of, digits):
    """`n` trials whose parameters `dists_of` gives, with losses rounded to `digits`."""
    rng = random.Random(seed)
    study = optuna.create_study()
    trials = []
    for _ in range(n):
        name = rng.choice(list(CONDITIONAL))
        dists = dists_of(name)
        values = {key: draw(dist, rng) for key, dist in dists.items()} | {"name": name}
        value = round(loss(values), digits)
        trial = optuna.trial.create_trial(params=values, distributions=dists, value=value)
        study.add_trial(trial)
        trials.append({"values": values, "loss": value})
    evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    importance = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {"case": label, "trials": trials, "importance": importance}


def flat(_):
    return FLAT


def conditional(name):
    return {"name": FLAT["name"], **CONDITIONAL[name]}


if __name__ == "__main__":
    cases = [
        # Many losses are equal: all that equal the last of the best count among them.
        case("flat", 200, 1, flat, 1),
        case("few", 12, 2, flat, 3),
        case("conditional", 150, 3, conditional, 3),
    ]
    print(json.dumps({"optuna": optuna.__version__, "cases": cases}))
