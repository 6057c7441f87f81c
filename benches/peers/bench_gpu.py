"""PyTorch's side of benches/gpu.rs: the same models, batches and numbers, trained on one GPU, eager channels-last or compiled.

    python benches/peers/bench_gpu.py [--works resnet50:128,gpt2] [--precisions bf16] [--compile [MODE]] [--first] [--tiny]

`--works` and `--precisions` measure a part, `--compile` is torch.compile, `--first` prints the time to the end of one step of ResNet-50. In a table of `benches/gpu.sh` each is a column.

Batches come from page-locked memory in each step, as they do in ddprun. `--tiny` trains small models on the CPU, to see that all of it works.
"""
import argparse
import contextlib
import time

BEGAN = time.perf_counter()

import torch
import torch.nn.functional as F
from models import Gpt, resnet18
from torch import nn

flags = argparse.ArgumentParser()
flags.add_argument("--compile", nargs="?", const="default", help="torch.compile, and its mode: `reduce-overhead` records CUDA graphs")
flags.add_argument("--first", action="store_true", help="only the time to the end of the first step of ResNet-50")
flags.add_argument("--tiny", action="store_true")
flags.add_argument("--works", help="`resnet50:128,gpt2`; all without it")
flags.add_argument("--precisions", help="`bf16,fp16`; all without it")
flags = flags.parse_args()
DEVICE = torch.device("cpu" if flags.tiny else "cuda")
CARD = "the CPU" if flags.tiny else torch.cuda.get_device_name()
torch.backends.cudnn.benchmark = True
WARM, STEPS = (1, 2) if flags.tiny else (8, 30)


def resnet50():
    from torchvision.models import resnet50 as build

    return build()


def small_cnn():
    convolution = nn.Conv2d(3, 8, 3, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))


def mlp(width, *hidden):
    sizes = (784, *[width] * len(hidden), 10)
    layers = [layer for i, o in zip(sizes, sizes[1:]) for layer in (nn.Linear(i, o), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *layers[:-1])


def images(size, classes):
    return lambda n: (torch.randn(n, 3, size, size), torch.randint(classes, (n,)))


def tokens(length, words):
    return lambda n: (torch.randint(words, (n, length)), torch.randint(words, (n, length)))


def digits(n):
    return torch.randn(n, 1, 28, 28), torch.randint(10, (n,))


# key of --works, name -> (model, batch, batch sizes, what is counted, how many of them a sample has)
WORKS = {
    ("resnet50", "ResNet-50 224x224"): (resnet50, images(224, 1000), (64, 128, 256), "images", 1),
    ("resnet18", "ResNet-18 32x32"): (lambda: resnet18(10, True), images(32, 10), (64, 256), "images", 1),
    ("gpt2", "GPT-2 124M"): (lambda: Gpt(12, 12, 768, 1024, 50257), tokens(1024, 50257), (4, 8), "tokens", 1024),
    ("mlp", "MLP 784-2048-2048-10"): (lambda: mlp(2048, 1, 2), digits, (128,), "samples", 1),
}
TINY = {
    ("resnet50", "CNN 8x8"): (small_cnn, images(8, 10), (4,), "images", 1),
    ("gpt2", "GPT tiny"): (lambda: Gpt(2, 2, 16, 16), tokens(16, 65), (2,), "tokens", 16),
    ("mlp", "MLP tiny"): (lambda: mlp(16, 1), digits, (4,), "samples", 1),
}
# "tf32" is PyTorch's default: convolutions may round to it, products do not.
PRECISIONS = {"fp32": None, "tf32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class Training:
    def __init__(self, build, batch_of, batch, precision):
        torch.backends.cudnn.allow_tf32 = precision != "fp32"
        torch.backends.cuda.matmul.allow_tf32 = False
        self.dtype = PRECISIONS[precision]
        model = build().to(DEVICE).to(memory_format=torch.channels_last)
        is_text = isinstance(model, Gpt)
        self.optimizer = (
            torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1, fused=True)
            if is_text
            else torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
        )
        self.scaler = torch.amp.GradScaler(DEVICE.type, enabled=precision == "fp16" and not flags.tiny)

        def loss(inputs, targets):
            outputs = model(inputs)
            return F.cross_entropy(outputs.flatten(0, -2), targets.flatten())

        # The loss with the model: the logits of a language model are a good part of a step.
        self.loss = torch.compile(loss, mode=flags.compile) if flags.compile else loss
        self.batches = [batch_of(batch) for _ in range(4)]
        if not flags.tiny:
            self.batches = [(x.pin_memory(), y.pin_memory()) for x, y in self.batches]

    def step(self, at):
        inputs, targets = (part.to(DEVICE, non_blocking=True) for part in self.batches[at % 4])
        if inputs.dim() == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        halved = torch.autocast(DEVICE.type, dtype=self.dtype) if self.dtype else contextlib.nullcontext()
        with halved:
            loss = self.loss(inputs, targets)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        # A run looks at its loss in each step, as ddprun does.
        return loss.item()

    def measure(self):
        for at in range(WARM):
            self.step(at)
        peak = None
        if not flags.tiny:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        for at in range(WARM, WARM + STEPS):
            self.step(at)
        if not flags.tiny:
            torch.cuda.synchronize()
            peak = torch.cuda.max_memory_allocated()
        return (time.perf_counter() - began) / STEPS, peak


how = f"compile {flags.compile}" if flags.compile else "eager"
title = f"PyTorch {torch.__version__} {how}"


def line(count, unit, found, exact):
    seconds, peak = found
    text = f"{count / seconds:.1f} {unit}/s, {1 / seconds:.2f} steps/s"
    if peak:
        text += f", {peak / 2**30:.2f} GiB"
    if exact:
        text += f", {exact[0] / seconds:.2f}x fp32's speed"
        if peak:
            text += f", {100 * peak / exact[1]:.0f} % of its memory"
    return text


if flags.first:
    (_, name), (build, batch_of, *_) = next(iter((TINY if flags.tiny else WORKS).items()))
    Training(build, batch_of, 4 if flags.tiny else 64, "bf16").step(0)
    took = time.perf_counter() - BEGAN
    print(f"TABLE | {title}: start to the end of the first step of {name}, bf16 | {took:.2f} s | {CARD} |")
    raise SystemExit


def wanted(key, batch):
    """Whether a model is to be measured at this batch size. Small models have one each."""
    if flags.works is None:
        return True
    asked = [word.partition(":") for word in flags.works.split(",")]
    return any(name == key and (flags.tiny or size in ("", str(batch))) for name, _, size in asked)


for (key, name), (build, batch_of, sizes, unit, each) in (TINY if flags.tiny else WORKS).items():
    for batch in filter(lambda batch: wanted(key, batch), sizes):
        exact = None
        for precision in PRECISIONS:
            if flags.precisions is not None and precision not in flags.precisions.split(","):
                continue
            try:
                found = Training(build, batch_of, batch, precision).measure()
                said = line(batch * each, unit, found, exact)
                exact = found if precision == "fp32" else exact
            except (ImportError, RuntimeError) as error:
                said = "failed: " + str(error).split("\n")[0]
            if not flags.tiny:
                torch.cuda.empty_cache()
            print(f"SPEED | {name}, batch {batch}, {precision} | {title} | {said} | {CARD} |", flush=True)
