"""Seconds from `T0` (seconds of the epoch) to the end of the first DDP step of ResNet-18."""
import json
import os
import time

import torch
import torch.distributed as dist
from models import MODELS

torch.set_num_threads(1)
dist.init_process_group("gloo")
build, size, batch, loss, optimizer = MODELS["resnet18_imagenet"]
model = build()
optimizer = optimizer(model.parameters())
inputs, targets = batch(size)
loss(torch.nn.parallel.DistributedDataParallel(model)(inputs), targets).backward()
optimizer.step()
if dist.get_rank() == 0:
    line = {"bench": "first_step", "total_to_first_step": time.time() - float(os.environ["T0"])}
    print(json.dumps(line), flush=True)
dist.destroy_process_group()
