"""PyTorch's side of benches/gpu.rs: samples per second of forward and backward on one GPU, eager channels-last and compiled.

    python benches/peers/bench_gpu.py [--compile]
"""
import argparse
import time

import torch
import torch.nn.functional as F
from models import Gpt, resnet18
from torch import nn

flags = argparse.ArgumentParser()
flags.add_argument("--compile", action="store_true")
flags.add_argument("--passes", type=int, default=20)
flags = flags.parse_args()
GPU = torch.device("cuda")


def images(size, batch, classes):
    x = torch.randn(batch, 3, size, size, device=GPU).contiguous(memory_format=torch.channels_last)
    return x, torch.randint(classes, (batch,), device=GPU)


def tokens(length, batch):
    x = torch.randint(50257, (batch, length), device=GPU)
    return x, x.flatten()


def resnet50():
    from torchvision.models import resnet50 as build

    return build()


WORKS = {
    "resnet50": (resnet50, lambda: images(224, 64, 1000), 64),
    "resnet18": (lambda: resnet18(10, True), lambda: images(32, 256, 10), 256),
    "gpt": (lambda: Gpt(12, 12, 768, 1024), lambda: tokens(1024, 4), 4),
    "mlp": (
        lambda: nn.Sequential(nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10)),
        lambda: (torch.randn(256, 784, device=GPU), torch.randint(10, (256,), device=GPU)),
        256,
    ),
}
TYPES = {"Fp32": None, "Bf16": torch.bfloat16, "Fp16": torch.float16}


def seconds(model, inputs, targets, dtype):
    def one():
        with torch.autocast("cuda", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            outputs = model(inputs)
            loss = F.cross_entropy(outputs.flatten(0, -2).float(), targets)
        loss.backward()
        model.zero_grad()

    for _ in range(5):
        one()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(flags.passes):
        one()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / flags.passes


how = "compiled" if flags.compile else "eager"
name = torch.cuda.get_device_name()
for work, (build, batch_of, batch) in WORKS.items():
    for precision, dtype in TYPES.items():
        try:
            model = build().to(GPU).to(memory_format=torch.channels_last)
            took = seconds(torch.compile(model) if flags.compile else model, *batch_of(), dtype)
            line = f"{batch / took:.1f} samples/s"
        except (ImportError, RuntimeError) as error:
            line = f"failed: {error}"
        print(f"TABLE | PyTorch {torch.__version__} {how} {work}, batch {batch}, {precision}, forward and backward | {line} | {name} |")
