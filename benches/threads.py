"""Time of a training step with one thread and with two, and the share of it that runs on one thread only.

    cargo build --release
    python benches/threads.py [--ddprun target/release/ddprun] [--steps 8] [NAME ...]

Each line is a run of an experiment of this repository with a few changed keys. Those whose data is missing are named at
the end: put it into `data/`, as the head of the experiment says. Times are of forward, backward and update, from
`events.jsonl`; with t1 and t2 of them, the serial share is 2 t2 / t1 - 1.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

SHAPES = "experiments/quickstart.toml data.train_per_class=64 data.val_per_class=2"
# A name, and the words of its command. Small sets to validate on: only steps are timed.
RUNS = {
    "resnet8, 32x32": SHAPES,
    "resnet18, 64x64": f"{SHAPES} model.name=resnet18 data.image_size=64",
    "resnext50_32x4d, 64x64": f"{SHAPES} model.name=resnext50_32x4d data.image_size=64 train.batch_size=16",
    "mobilenet_v3_small, 64x64": f"{SHAPES} model.name=mobilenet_v3_small data.image_size=64",
    "efficientnet_b0, 64x64": f"{SHAPES} model.name=efficientnet_b0 data.image_size=64 train.batch_size=16",
    "convnext_tiny, 64x64": f"{SHAPES} model.name=convnext_tiny data.image_size=64 train.batch_size=16",
    "vit_tiny, 64x64": f"{SHAPES} model.name=vit_tiny data.image_size=64 train.batch_size=16",
    "graph_vit": "experiments/graph_vit.toml",
    "graph_resnet18": "experiments/graph_resnet18.toml",
    "airbench94": "experiments/airbench94.toml train.batch_size=128",
    "mlp": "experiments/mnist.toml",
    "gpt": "experiments/gpt_shakespeare_cpu.toml",
    "llama": "experiments/llama_tiny.toml",
    "itransformer": "experiments/itransformer_etth1.toml",
    "patchtst": "experiments/patchtst_etth1.toml",
    "dlinear": "experiments/dlinear_etth1.toml",
    "lstm": "experiments/dlinear_etth1.toml model.name=lstm",
    "gru": "experiments/dlinear_etth1.toml model.name=gru",
    "timebridge": "experiments/timebridge_etth1.toml",
    "nest": "experiments/nest_digits.toml",
    "fastconformer": "experiments/probe_digits.toml",
    "diffusion_policy": "experiments/diffusion_push.toml",
    "diffusion_policy_image": "experiments/push_t_images.toml",
}


def step_seconds(ddprun, words, threads, steps, folder):
    """Seconds of a step, or what was said instead of training."""
    changes = [f"train.steps={steps}", "distributed.devices=1", f"distributed.threads_per_rank={threads}",
               f"checkpoint.dir={folder}/checkpoints", f"logging.dir={folder}/logs"]
    ended = subprocess.run([ddprun, *words.split(), *changes], capture_output=True, text=True)
    events = sorted(pathlib.Path(folder, "logs").glob("*/*/events.jsonl"), key=lambda path: path.stat().st_mtime)
    if ended.returncode != 0 or not events:
        return ended.stderr.strip() or ended.stdout.strip()
    lines = [json.loads(line) for line in events[-1].read_text().splitlines()]
    phases = next(line["phase_seconds"] for line in lines if line["event"] == "finished")
    return sum(phases[name] for name in ("forward", "backward", "optimizer")) / steps


def main():
    flags = argparse.ArgumentParser()
    flags.add_argument("--ddprun", default="target/release/ddprun")
    flags.add_argument("--steps", type=int, default=8)
    flags.add_argument("names", nargs="*")
    flags = flags.parse_args()
    left_out = []
    print("| model | 1 thread | 2 threads | serial share |\n|---|---|---|---|")
    for name, words in RUNS.items():
        if flags.names and name not in flags.names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            times = [step_seconds(flags.ddprun, words, threads, flags.steps, folder) for threads in (1, 2)]
        if any(isinstance(time, str) for time in times):
            left_out.append(f"{name}: {[time for time in times if isinstance(time, str)][0]}")
            continue
        one, two = times
        print(f"| {name} | {1e3 * one:.1f} ms | {1e3 * two:.1f} ms | {max(0.0, 2 * two / one - 1):.0%} |", flush=True)
    for line in left_out:
        print(f"left out: {line}", file=sys.stderr)


main()
