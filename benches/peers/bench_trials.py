"""Seconds per trial that does next to nothing, under ddprun's sweeps and the tools that people use, in turn.

    /venv/bin/python benches/peers/bench_trials.py target/release/ddprun [rounds]

The Python needs torch, hydra-core, hydra-joblib-launcher and optuna. A trial of ddprun trains one step on two ranks and
leaves its events, metrics, checkpoint and curves; one of torchrun meets with two ranks and leaves; the others import
torch. One trial at a time, but for joblib, which runs two.
"""
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
TRIALS = {"ddprun sweep": 20, "hydra --multirun": 20, "hydra --multirun, joblib": 20, "optuna, a process each": 5,
          "torchrun each": 5}
EXPERIMENT = """
schema = 1
[model]
name = "mlp"
hidden = [8]
[data]
name = "shapes"
classes = 2
train_per_class = 8
val_per_class = 8
image_size = 8
[train]
steps = 1
global_batch_size = 8
[optimizer]
name = "sgd"
lr = 0.1
"""
OPTUNA = """
import optuna, subprocess, sys
optuna.logging.set_verbosity(optuna.logging.ERROR)
def objective(trial):
    trial.suggest_float("lr", 1e-5, 1, log=True)
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return 0.0
optuna.create_study(storage="sqlite:///trials.db", study_name="s").optimize(objective, n_trials=%d)
"""


def commands(ddprun):
    n = TRIALS
    sweep = ["sweep.method=random", f"sweep.trials={n['ddprun sweep']}", "sweep.devices_per_trial=2",
             "sweep.concurrent_trials=1", "optimizer.lr=interval(0.001,0.1)"]
    hydra = [sys.executable, str(HERE / "hydra_app.py"), "--multirun", f"+x=range(0,{n['hydra --multirun']})"]
    torchrun = [str(BIN / "torchrun"), "--nproc_per_node=2", str(HERE / "trivial.py")]
    return {
        "ddprun sweep": [[ddprun, "sweep", "trivial.toml", *sweep]],
        "hydra --multirun": [hydra],
        "hydra --multirun, joblib": [[*hydra, "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]],
        "optuna, a process each": [[sys.executable, "-c", OPTUNA % n["optuna, a process each"]]],
        "torchrun each": [torchrun] * n["torchrun each"],
    }


def seconds(calls):
    """Of all calls, in a fresh folder whose data is made before."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "trivial.toml").write_text(EXPERIMENT)
        began = time.perf_counter()
        for call in calls:
            subprocess.run(call, cwd=folder, check=True, env=dict(os.environ, OMP_NUM_THREADS="1"),
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return time.perf_counter() - began


found = {name: [] for name in TRIALS}
for _ in range(int(sys.argv[2]) if len(sys.argv) > 2 else 3):
    for name, calls in commands(str(Path(sys.argv[1]).resolve())).items():
        found[name].append(seconds(calls) / TRIALS[name])
ours = statistics.median(found["ddprun sweep"])
print("| a trial of | s (least to most) | times ddprun's |\n|---|---|---|")
for name, values in found.items():
    middle = statistics.median(values)
    print(f"| {name} | {middle:.2f} ({min(values):.2f} to {max(values):.2f}) | {middle / ours:.1f} |")
