"""Saving and loading ResNet-50 with its momentum (205 MB) as safetensors, and a raw write of as many bytes."""
import json
import os
import shutil
import statistics
import time

import safetensors.torch
import torch
import torchvision

folder = os.environ.get("PEERS_TMP", "peers-tmp")
os.makedirs(folder, exist_ok=True)
model = torchvision.models.resnet50()
tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
tensors |= {f"momentum.{name}": torch.randn_like(value) for name, value in model.named_parameters()}
size = sum(value.nbytes for value in tensors.values())
blob = os.urandom(size)
path = f"{folder}/checkpoint.safetensors"


def sync(name):
    file = os.open(name, os.O_RDONLY)
    os.fsync(file)
    os.close(file)


def raw():
    with open(f"{folder}/raw", "wb") as file:
        file.write(blob)
    sync(f"{folder}/raw")


def save():
    safetensors.torch.save_file(tensors, path + ".tmp")
    sync(path + ".tmp")
    os.replace(path + ".tmp", path)


def load():
    loaded = safetensors.torch.load_file(path)
    for name, value in tensors.items():
        value.copy_(loaded[name])


names = {
    "raw write + fsync": raw,
    "safetensors save_file + fsync + rename": save,
    "safetensors load_file + copy into model+opt": load,
}
for name, work in names.items():
    times = []
    for _ in range(6):
        os.sync()
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    line = {"bench": "ckpt", "name": name, "bytes": size, "s": statistics.median(times[1:])}
    print(json.dumps(line), flush=True)
shutil.rmtree(folder)
