"""gloo's all-reduce under torchrun: a JSON line for each size."""
import json
import statistics
import time

import torch
import torch.distributed as dist

torch.set_num_threads(1)
dist.init_process_group("gloo")
for size in [4 << 10, 64 << 10, 1 << 20, 16 << 20, 44_706_000, 256 << 20]:
    values = torch.full((size // 4,), 1e-30)
    for _ in range(3):
        dist.all_reduce(values)
    dist.barrier()
    began = time.perf_counter()
    dist.all_reduce(values)
    calls = torch.tensor([min(500, max(2, int(0.4 / (time.perf_counter() - began))))])
    dist.broadcast(calls, 0)
    means = []
    for _ in range(5):
        values.fill_(1e-30)
        dist.barrier()
        began = time.perf_counter()
        for _ in range(int(calls)):
            dist.all_reduce(values)
        means.append(1e6 * (time.perf_counter() - began) / int(calls))
    if dist.get_rank() == 0:
        line = {"bench": "gloo_all_reduce", "bytes": size, "us": statistics.median(means)}
        print(json.dumps(line), flush=True)
dist.destroy_process_group()
