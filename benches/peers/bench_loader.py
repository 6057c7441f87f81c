"""`bench_loader.py crop|rand_augment WORKERS REPETITIONS THREADS`: images per second of a DataLoader over `jpegs/train`,
decoded by torchvision.io, cut at random to 224 x 224, flipped, with RandAugment or without, and normalised."""
import json
import statistics
import sys
import time

import torch
from torchvision import datasets
from torchvision.io import ImageReadMode, decode_image, read_file
from torchvision.transforms import v2

workers, repetitions = int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(int(sys.argv[4]))
transform = v2.Compose(
    [
        v2.RandomResizedCrop(224, antialias=True),
        v2.RandomHorizontalFlip(),
        *([v2.RandAugment()] if sys.argv[1] == "rand_augment" else []),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    ]
)
images = datasets.ImageFolder(
    "jpegs/train", transform, loader=lambda path: decode_image(read_file(path), ImageReadMode.RGB)
)
rates = []
for _ in range(repetitions):
    loader = torch.utils.data.DataLoader(images, 32, shuffle=True, num_workers=workers, drop_last=True)
    times = [time.perf_counter() for _ in loader]
    rates.append(32 * (len(times) - 8) / (times[-1] - times[7]))
print(json.dumps({"bench": "loader", "workers": workers, "steady_img_s": statistics.median(rates)}))
