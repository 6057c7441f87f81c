"""Bytes that one training step in bf16 moves through a GPU's memory, on paper: ours by the kernels of
crates/candle-train/src/ops/cuda, PyTorch's eager mode by its operations under autocast with flash attention.

    python benches/gpu_budget.py

Every entry is reads + writes in bytes for each element of its tensor, 4 for f32 and 2 for bf16. Caches and the memory
of weights inside of products are left out. Needs nothing but Python."""

# GPT-2: for each of the batch x 1024 x 768 values of the residual stream. Scores of attention are in no memory.
GPT_LAYER = {  # operation: (ours, PyTorch)
    "norms": (2 * (8 + 12), 2 * (8 + 12)),
    "casts of inputs": (2 * (6 + 6 + 6), 4 * 6),
    # Ours give f32, but into and out of GELU.
    "products of linear layers": ((14 + 6 + 10 + 12) + (10 + 6 + 12 + 10) + (8 + 4 + 10 + 10), 3 * (8 + 4 + 10 + 10)),
    "GELU, forward": (24, 16),
    "GELU, backward, and rounded gradients": (18 + 6 + 24 + 6, 24 + 18),
    "residual sums": (2 * 12 + 2 * 12, 2 * 10 + 2 * 12),
    # Operands of both directions as bf16; before backward the result's gradient, which is multiplied with the result.
    "heads apart": (18 + 18 + 10, 12),
    # Forward: three operands in, f32 out. Backward: four operands for each of two kernels, three gradients out.
    "attention": (6 + 4 + 2 * 8 + 12, 8 + 20),
}
# For each of the batch x 1024 x 50257 logits.
LOGITS = {
    "product, forward and backward": (2 + 4, 2 + 4),
    "bias kernel": (6, 0),
    # Later reads of a row come from the cache.
    "cross-entropy and its gradient": (4 + 4, 6 + 4 + 4),
    "the gradient, rounded": (6, 0),
}
# For each weight: casts, gradient to its bucket, norm, AdamW.
WEIGHTS = {
    "casts, forward and backward": (6 + 6, 6),
    "gradient": (4 + 8, 2 + 6),
    "norm and AdamW": (4 + 16 + 12, 4 + 8 + 16 + 12),
}
# ResNet-50: for each value that a convolution gives; inputs are about as many. A third has a residual.
CONVOLUTION = {
    "convolution in three directions": (4 + 4 + 4, 4 + 4 + 4),
    "batch norm and ReLU, forward": (2 + 4 + 2 / 3, 2 + 4 + 4 + 6 / 3),
    # Without a residual the rectifier's mask is computed again; with one it is read, and the gradient is written.
    "batch norm and ReLU, backward": (8 / 3 + 4 * 2 / 3 + 6, 6 + 10),
    "residual gradients": (6 / 3, 6 / 3),
}


def show(title, parts):
    print(f"\n{title}\n{'GB':>38} {'ours':>8} {'PyTorch':>8}")
    totals = [0.0, 0.0]
    for elements, table in parts:
        for name, each in table.items():
            gigabytes = [elements * bytes_each / 1e9 for bytes_each in each]
            totals = [total + more for total, more in zip(totals, gigabytes)]
            print(f"{name:>38} {gigabytes[0]:8.1f} {gigabytes[1]:8.1f}")
    print(f"{'in all':>38} {totals[0]:8.1f} {totals[1]:8.1f}   {totals[0] / totals[1]:.1f} times as much")
    for card, rate in [("A100 80GB", 2.04e12), ("H100 SXM", 3.35e12)]:
        times = [total * 1e9 / rate * 1e3 for total in totals]
        print(f"{'ms at the memory rate of ' + card:>38} {times[0]:8.1f} {times[1]:8.1f}")


tokens = 8 * 1024
show("GPT-2 124M, batches of 8 x 1024", [(12 * tokens * 768, GPT_LAYER), (tokens * 50257, LOGITS), (124e6, WEIGHTS)])
show("ResNet-50, batches of 64 x 224 x 224", [(64 * 11.1e6, CONVOLUTION), (25.6e6, WEIGHTS)])
