"""Operations that PyTorch's eager mode dispatches in one training step under bf16 autocast, without views and empty
allocations: about as many as it launches kernels on a GPU. They depend on the layers, not on their sizes, so small
models on a CPU tell (docs/gpu.md).

    python benches/peers/count_operations.py

Needs torch and torchvision."""
import collections

import torch
import torchvision
from torch.utils._python_dispatch import TorchDispatchMode

from models import Gpt


class Count(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = collections.Counter()

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        name = function.overloadpacket.__name__
        is_view = any(out.alias_info and not out.alias_info.is_write for out in function._schema.returns)
        if function.namespace == "aten" and not is_view and "empty" not in name and name != "_unsafe_view":
            self.calls[name] += 1
        return function(*arguments, **(keywords or {}))


def step(model, optimizer, inputs, labels):
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cpu", torch.bfloat16):
        outputs = model(inputs)
        loss = torch.nn.functional.cross_entropy(outputs.flatten(0, -2), labels.flatten())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def count(name, model, optimizer, inputs, labels):
    step(model, optimizer, inputs, labels)
    with Count() as counted:
        step(model, optimizer, inputs, labels)
    most = ", ".join(f"{n} {call}" for call, n in counted.calls.most_common(6))
    print(f"{name}: {sum(counted.calls.values())} operations ({most} ...)")


gpt = Gpt(12, 12, 96, 32)
tokens = torch.randint(0, 65, (2, 32))
count("GPT-2 of 12 layers", gpt, torch.optim.AdamW(gpt.parameters(), fused=True), tokens, tokens)
resnet = torchvision.models.resnet50(num_classes=3)
sgd = torch.optim.SGD(resnet.parameters(), lr=0.1, momentum=0.9, fused=True)
count("ResNet-50", resnet, sgd, torch.randn(2, 3, 64, 64), torch.tensor([0, 1]))
