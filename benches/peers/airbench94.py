"""The recipe of experiments/airbench94.toml in PyTorch, on the same folders of photos: the published one of Keller Jordan's
airbench94, on a CPU. All photos are decoded once and stay in memory. Prints one JSON line; its time begins before the photos
are read, and ends when the test accuracy with test-time augmentation is known."""
import argparse
import json
import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

flags = argparse.ArgumentParser()
flags.add_argument("--data", required=True, help="holds train/<class>/ and test/<class>/")
flags.add_argument("--widths", default="64,256,256")
flags.add_argument("--epochs", type=int, default=10)
flags.add_argument("--batch", type=int, default=1024)
flags.add_argument("--seed", type=int, default=0)
flags.add_argument("--threads", type=int, default=os.cpu_count())
flags.add_argument("--dtype", default="fp32", choices=["fp32", "bf16"], help="bf16: autocast")
flags.add_argument("--cl", action="store_true", help="channels_last")
flags.add_argument("--compile", action="store_true")
flags.add_argument("--probe", type=int, default=0, help="only time so many steps, on a part of the photos")
flags = flags.parse_args()
os.environ.setdefault("OMP_NUM_THREADS", str(flags.threads))

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

torch.set_num_threads(flags.threads)
torch.manual_seed(flags.seed)
WIDTHS = [int(width) for width in flags.widths.split(",")]
MEAN = torch.tensor([0.4914, 0.4822, 0.4465]).view(3, 1, 1)
STD = torch.tensor([0.2470, 0.2435, 0.2616]).view(3, 1, 1)
LAYOUT = torch.channels_last if flags.cl else torch.contiguous_format
PEAK, MOMENTUM, DECAY, BIAS = 1.5, 0.85, 0.00133043, 64.0


def photos(part):
    """All photos of a part as normalised planes, and their labels."""
    classes = sorted(path for path in (Path(flags.data) / part).iterdir() if path.is_dir())
    files = [(file, label) for label, folder in enumerate(classes) for file in sorted(folder.iterdir())]
    files = files[:: max(1, len(files) // (4 * flags.batch))] if flags.probe else files
    with ThreadPoolExecutor(flags.threads) as pool:
        pixels = list(pool.map(lambda file: np.asarray(Image.open(file[0]).convert("RGB")), files, chunksize=500))
    images = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).float() / 255
    return (images - MEAN) / STD, torch.tensor([label for _, label in files])


class Convolution(nn.Conv2d):
    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs, 3, padding=1, bias=False)
        nn.init.dirac_(self.weight.data[:inputs])


def norm(channels):
    layer = nn.BatchNorm2d(channels, eps=1e-12, momentum=0.4)
    layer.weight.requires_grad = False
    return layer


class Group(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv1, self.norm1 = Convolution(inputs, outputs), norm(outputs)
        self.conv2, self.norm2 = Convolution(outputs, outputs), norm(outputs)

    def forward(self, x):
        x = F.gelu(self.norm1(F.max_pool2d(self.conv1(x), 2)))
        return F.gelu(self.norm2(self.conv2(x)))


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.whiten = nn.Conv2d(3, 24, 2)
        self.whiten.weight.requires_grad = False
        nn.init.zeros_(self.whiten.bias)
        groups = [Group(inputs, outputs) for inputs, outputs in zip([24, *WIDTHS], WIDTHS)]
        self.layers = nn.Sequential(nn.GELU(), *groups, nn.MaxPool2d(3))
        self.head = nn.Linear(WIDTHS[-1], 10, bias=False)

    def forward(self, x):
        return self.head(self.layers(self.whiten(x)).flatten(1)) / 9


def whiten(layer, images):
    patches = F.unfold(images, 2).transpose(1, 2).reshape(-1, 12)
    values, vectors = torch.linalg.eigh(patches.T @ patches / len(patches))
    filters = (vectors / (values + 5e-4).sqrt()).T.flip(0).reshape(12, 3, 2, 2)
    layer.weight.data.copy_(torch.cat([filters, -filters]))


def cropped(padded):
    """Each photo cut out of its padded self at a place of its own."""
    corner = torch.randint(0, 5, (len(padded), 2))
    out = torch.empty(len(padded), 3, 32, 32)
    for top in range(5):
        for left in range(5):
            here = (corner[:, 0] == top) & (corner[:, 1] == left)
            out[here] = padded[here, :, top : top + 32, left : left + 32]
    return out


def rate(step, steps):
    """The share of the peak: linear from a fifth, and down to 7 %."""
    peak = 0.23 * steps - 1
    if step <= peak:
        return 0.2 + 0.8 * step / peak
    return 1 - 0.93 * (step - peak) / (steps - 1 - peak)


def autocast():
    return torch.autocast("cpu", torch.bfloat16, enabled=flags.dtype == "bf16")


def views(images):
    """Each view with its weight: the photos and two shifted ones, each with its mirror image."""
    padded = F.pad(images, (1,) * 4, "reflect")
    found = [(images, 0.5), (padded[:, :, :32, :32], 0.25), (padded[:, :, 2:, 2:], 0.25)]
    return [(view, weight / 2) for image, weight in found for view in (image, image.flip(-1))]


@torch.no_grad()
def accuracy(model, images, labels, is_augmented):
    model.eval()
    right = 0
    for batch, wanted in zip(images.split(1000), labels.split(1000)):
        with autocast():
            weighed = views(batch) if is_augmented else [(batch, 1.0)]
            answers = sum(weight * model(view.contiguous(memory_format=LAYOUT)).float() for view, weight in weighed)
        right += int((answers.argmax(1) == wanted).sum())
    return right / len(labels)


began = time.perf_counter()
images, labels = photos("train")
read = time.perf_counter() - began
network = Network()
whiten(network.whiten, images[:: max(1, len(images) // 5000)])
network = network.to(memory_format=LAYOUT)
biases = [value for name, value in network.named_parameters() if "norm" in name and value.requires_grad]
others = [value for name, value in network.named_parameters() if "norm" not in name and value.requires_grad]
groups = [{"params": others, "lr": PEAK, "weight_decay": DECAY},
          {"params": biases, "lr": BIAS * PEAK, "weight_decay": DECAY / BIAS}]
optimizer = torch.optim.SGD(groups, lr=PEAK, momentum=MOMENTUM, nesterov=True, fused=True)
peaks = [group["lr"] for group in optimizer.param_groups]
values = [value for value in network.state_dict().values() if value.is_floating_point()]
slow = [value.clone() for value in values]
model = torch.compile(network) if flags.compile else network

mirrored = (torch.rand(len(images)) < 0.5).view(-1, 1, 1, 1)
padded = F.pad(torch.where(mirrored, images.flip(-1), images), (2,) * 4, "reflect")
del images
per_epoch = len(labels) // flags.batch
epochs = flags.probe // per_epoch + 1 if flags.probe else flags.epochs
total, step, times = epochs * per_epoch, 0, []
for epoch in range(epochs):
    network.whiten.bias.requires_grad = epoch < 3
    model.train()
    order = torch.randperm(len(labels))
    for chosen in order[: per_epoch * flags.batch].split(flags.batch):
        started = time.perf_counter()
        for group, peak in zip(optimizer.param_groups, peaks):
            group["lr"] = peak * rate(step, total)
        batch = cropped(padded[chosen])
        batch = (batch.flip(-1) if epoch % 2 else batch).contiguous(memory_format=LAYOUT)
        with autocast():
            answers = model(batch)
            loss = F.cross_entropy(answers, labels[chosen], label_smoothing=0.2)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        if step % 5 == 0:
            share = 1 - 0.95**5 * (step / total) ** 3
            torch._foreach_lerp_(slow, values, share)
            torch._foreach_copy_(values, slow)
        times.append(time.perf_counter() - started)
        if flags.probe and step >= flags.probe:
            print(json.dumps({"step": statistics.median(times[len(times) // 3 :])}), flush=True)
            raise SystemExit
torch._foreach_copy_(values, slow)
trained = time.perf_counter() - began
test = photos("test")
plain, augmented = (accuracy(model, *test, is_augmented) for is_augmented in (False, True))
print(json.dumps({"seconds": time.perf_counter() - began, "read": read, "trained": trained,
                  "step": statistics.median(times), "accuracy": plain, "tta": augmented}), flush=True)
