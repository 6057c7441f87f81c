"""Time to an equal test accuracy: experiments/airbench94.toml with ddprun, and airbench94.py with PyTorch, in turn, on the
same folders of photos, for several seeds and in fp32 and bf16. Prints a line for each run, and a table.

    python benches/peers/speed_run.py --ddprun target/release/ddprun --data FOLDER

FOLDER holds train/<class>/ and test/<class>/. ddprun's time is that of its commands from start to end; PyTorch's begins
after its imports. Both read the photos, train, and measure the test accuracy with and without test-time augmentation.
PyTorch trains in the fastest of its modes, which short trials tell; what it compiles is kept from run to run."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

flags = argparse.ArgumentParser()
flags.add_argument("--ddprun", required=True, type=Path)
flags.add_argument("--data", required=True, type=Path)
flags.add_argument("--widths", default="64,256,256", help="channels of the three groups; smaller ones shrink the run")
flags.add_argument("--epochs", type=int, default=10)
flags.add_argument("--seeds", type=int, default=3)
flags.add_argument("--threads", type=int, default=os.cpu_count())
flags.add_argument("--target", type=float, default=0.94, help="test accuracy that a run must reach, with augmentation")
flags.add_argument("--dtypes", default="fp32,bf16")
flags.add_argument("--modes", default="default,channels_last,compile,channels_last compile")
flags = flags.parse_args()
ROOT = Path(__file__).resolve().parents[2]
COUNTS = [sum(path.is_file() for path in (flags.data / part).rglob("*")) for part in ("train", "test")]
WORDS = {"default": [], "channels_last": ["--cl"], "compile": ["--compile"]}


def output(command, folder=None):
    done = subprocess.run(list(map(str, command)), cwd=folder, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def ours(dtype, seed):
    with tempfile.TemporaryDirectory() as folder:
        data = flags.data.resolve()
        changes = {
            "experiment.seed": seed, "train.precision": dtype, "train.epochs": flags.epochs,
            "model.widths": f"[{flags.widths}]", "data.train_dir": data / "train", "data.val_dir": data / "test",
            "validation.every": f"{flags.epochs} epochs", "expect.val/accuracy.at_least": 0.0,
        }
        words = [f"{key}={value}" for key, value in changes.items()]
        began = time.perf_counter()
        output([flags.ddprun.resolve(), ROOT / "experiments/airbench94.toml", *words], folder)
        trained = time.perf_counter() - began
        words = "eval --latest --json --part val --tta hflip_translate".split()
        answer = output([flags.ddprun.resolve(), *words], folder)
        seconds = time.perf_counter() - began
        events = map(json.loads, next(Path(folder).rglob("events.jsonl")).read_text().splitlines())
        plain = [event["metrics"]["val/accuracy"] for event in events if event["event"] == "evaluated"]
        tta = json.loads(answer)["metrics"]["val/accuracy"]
        return {"seconds": seconds, "trained": trained, "tta": tta, "accuracy": plain[-1]}


def theirs(dtype, mode, *more):
    words = [word for name in mode.split() for word in WORDS[name]]
    command = [sys.executable, ROOT / "benches/peers/airbench94.py", "--data", flags.data, "--dtype", dtype,
               "--widths", flags.widths, "--epochs", flags.epochs, "--threads", flags.threads, *words, *more]
    return json.loads(output(command).splitlines()[-1])


def told(name, run):
    reached = "" if run["tta"] >= flags.target else f", below {flags.target}"
    return f"{name}: {run['seconds']:.1f} s to {run['tta']:.4f} ({run['accuracy']:.4f} without augmentation){reached}"


def fastest(dtype):
    steps = {mode: theirs(dtype, mode, "--probe", 9)["step"] for mode in flags.modes.split(",")}
    print(f"{dtype}: PyTorch's steps:", ", ".join(f"{mode} {1e3 * step:.0f} ms" for mode, step in steps.items()), flush=True)
    return min(steps, key=steps.get)


rows = []
for dtype in flags.dtypes.split(","):
    mode = fastest(dtype)
    pairs = []
    for seed in range(flags.seeds):
        pair = ours(dtype, seed), theirs(dtype, mode, "--seed", seed)
        pairs.append(pair)
        for name, run in zip(("ddprun", f"PyTorch ({mode})"), pair):
            print(f"{dtype}, seed {seed}: {told(name, run)}", flush=True)
        print(f"{dtype}, seed {seed}: {pair[1]['seconds'] / pair[0]['seconds']:.2f}x", flush=True)
    ratios = [other["seconds"] / own["seconds"] for own, other in pairs]
    cells = [dtype]
    for side in zip(*pairs):
        seconds = statistics.median(run["seconds"] for run in side)
        mean = statistics.mean(run["tta"] for run in side)
        least = min(run["tta"] for run in side)
        cells.append(f"{seconds:.1f} s, {100 * mean:.2f} % (least {100 * least:.2f} %)")
    cells[2] += f" ({mode})"
    cells.append(f"{statistics.median(ratios):.2f}x ({min(ratios):.2f}-{max(ratios):.2f})")
    rows.append(cells)

print(f"\n{COUNTS[0]} images to train on and {COUNTS[1]} to test on; widths {flags.widths}, {flags.epochs} epochs, {flags.seeds} seeds, {flags.threads} threads; "
      f"median time, mean accuracy with augmentation\n")
print("| precision | ddprun | PyTorch | ratio: median (min-max) |\n|---|---|---|---|")
for cells in rows:
    print(f"| {' | '.join(cells)} |")
