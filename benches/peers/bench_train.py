"""Time of a training step on samples in memory. Alone, or with `--ddp` under torchrun. Prints one JSON line."""
import argparse
import json
import os
import statistics
import time

flags = argparse.ArgumentParser()
flags.add_argument("--model", required=True)
flags.add_argument("--threads", type=int, default=1)
flags.add_argument("--cl", action="store_true", help="channels_last")
flags.add_argument("--compile", action="store_true")
flags.add_argument("--fused", action="store_true", help="the fused update of parameters")
flags.add_argument("--bucket-view", action="store_true", help="gradient_as_bucket_view of DDP")
flags.add_argument("--dtype", default="fp32", choices=["fp32", "bf16"], help="bf16: autocast")
flags.add_argument("--ddp", action="store_true")
flags.add_argument("--reps", type=int, default=3)
flags.add_argument("--seg", type=float, default=2.0, help="seconds of a repetition")
flags.add_argument("--warm", type=float, default=1.0, help="seconds before the first one")
flags = flags.parse_args()
os.environ.setdefault("OMP_NUM_THREADS", str(flags.threads))

import torch
import torch.distributed as dist
from models import MODELS

torch.set_num_threads(flags.threads)
torch.manual_seed(0)
if flags.ddp:
    dist.init_process_group("gloo")
build, size, batch, loss, optimizer = MODELS[flags.model]
model = build()
batches = [batch(size) for _ in range(4)]
if flags.cl:
    model = model.to(memory_format=torch.channels_last)
    batches = [(x.contiguous(memory_format=torch.channels_last), y) for x, y in batches]
optimizer = optimizer(model.parameters())
if flags.fused:
    for group in optimizer.param_groups:
        group["fused"] = True
if flags.ddp:
    model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=flags.bucket_view)
if flags.compile:
    model = torch.compile(model)


def autocast():
    return torch.autocast("cpu", torch.bfloat16, enabled=flags.dtype == "bf16")


def step(index):
    inputs, targets = batches[index % 4]
    with autocast():
        outputs = model(inputs)
    loss(outputs, targets).backward()
    if flags.model.startswith("gpt"):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def seconds(steps):
    if flags.ddp:
        dist.barrier()
    began = time.perf_counter()
    for index in range(steps):
        step(index)
    return time.perf_counter() - began


def agreed(steps):
    steps = torch.tensor([max(2, int(steps))])
    if flags.ddp:
        dist.broadcast(steps, 0)
    return int(steps)


seconds(3)
one = seconds(2) / 2
seconds(agreed(flags.warm / one))
steps = agreed(flags.seg / one)
times = [1e3 * seconds(steps) / steps for _ in range(flags.reps)]
if not flags.ddp or dist.get_rank() == 0:
    modes = {"sync": {"ms_per_microbatch": statistics.median(times), "segs_ms": times}}
    print(json.dumps({"bench": "train", "model": flags.model, "modes": modes}), flush=True)
if flags.ddp:
    dist.destroy_process_group()
