"""Writes forecast_peers.json: DLinear, iTransformer and PatchTST from their papers and published code, in f64 and
plain Python, so that nothing is shared with what is tested. A gradient is known by its product with
fill("check"), which is a directional derivative: two forward passes per tensor.

    python3 tests/golden/forecast_peers.py > tests/golden/forecast_peers.json
"""

import json
import math
import struct

MASK = (1 << 64) - 1
B, L, T, C, M = 2, 24, 6, 3, 4
D, H, F, LAYERS = 8, 2, 16, 2
PATCH, STRIDE = 8, 4


def f32(x):
    return struct.unpack("f", struct.pack("f", x))[0]


def fill(name, n):
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = (h ^ byte) * 0x100000001B3 & MASK
    values = []
    for i in range(1, n + 1):
        z = (h + i * 0x9E3779B97F4A7C15) & MASK
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
        z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
        z ^= z >> 31
        values.append((z >> 40) / 2**23 - 1)
    return values


def weight(name, shape):
    inner = math.prod(shape[1:])
    if len(shape) > 1:
        rule = lambda u: u / math.sqrt(inner)
    elif name.endswith(".weight"):
        rule = lambda u: 1 + 0.1 * u
    else:
        rule = lambda u: 0.1 * u
    return [f32(rule(u)) for u in fill(name, math.prod(shape))]


def linear(w, name, rows, bias=True):
    """rows [n][inputs] -> [n][outputs]"""
    flat = w[name + ".weight"]
    inputs = len(rows[0])
    outputs = len(flat) // inputs
    shift = w[name + ".bias"] if bias else [0.0] * outputs
    return [
        [sum(flat[o * inputs + i] * x for i, x in enumerate(row)) + shift[o] for o in range(outputs)]
        for row in rows
    ]


def add(a, b):
    return [[x + y for x, y in zip(p, q)] for p, q in zip(a, b)]


def transpose(rows):
    return [list(column) for column in zip(*rows)]


def layer_norm(w, name, rows):
    out = []
    for row in rows:
        mean = sum(row) / len(row)
        scale = math.sqrt(sum((x - mean) ** 2 for x in row) / len(row) + 1e-5)
        out.append([(x - mean) / scale * g + b for x, g, b in zip(row, w[name + ".weight"], w[name + ".bias"])])
    return out


def attention(w, name, x):
    q, k, v = (linear(w, f"{name}.{part}_projection", x) for part in ("query", "key", "value"))
    width = D // H
    y = [[0.0] * D for _ in x]
    for head in range(H):
        at = range(head * width, (head + 1) * width)
        for i in range(len(x)):
            scores = [sum(q[i][c] * key[c] for c in at) / math.sqrt(width) for key in k]
            top = max(scores)
            powers = [math.exp(s - top) for s in scores]
            for c in at:
                y[i][c] = sum(p * value[c] for p, value in zip(powers, v)) / sum(powers)
    return linear(w, f"{name}.out_projection", y)


def gelu(rows):
    return [[0.5 * x * (1 + math.erf(x / math.sqrt(2))) for x in row] for row in rows]


def encoder(w, x):
    for i in range(LAYERS):
        name = f"encoder.attn_layers.{i}"
        x = layer_norm(w, name + ".norm1", add(x, attention(w, name + ".attention", x)))
        y = linear(w, name + ".conv2", gelu(linear(w, name + ".conv1", x)))
        x = layer_norm(w, name + ".norm2", add(x, y))
    return x


def normalised(window):
    """window [L][C] -> each series standardised, and how to undo it"""
    scales = []
    for column in transpose(window):
        mean = sum(column) / L
        scales.append((mean, math.sqrt(sum((x - mean) ** 2 for x in column) / L + 1e-5)))
    values = [[(x - m) / s for x, (m, s) in zip(row, scales)] for row in window]
    return values, lambda y: [[v * s + m for v, (m, s) in zip(row, scales)] for row in y]


def dlinear(w, windows, _marks):
    out = []
    for window in windows:
        trend, seasonal = [], []
        for column in transpose(window):
            padded = [column[0]] * 12 + column + [column[-1]] * 12
            average = [sum(padded[i : i + 25]) / 25 for i in range(L)]
            trend.append(average)
            seasonal.append([x - a for x, a in zip(column, average)])
        out.append(transpose(add(linear(w, "Linear_Trend", trend), linear(w, "Linear_Seasonal", seasonal))))
    return out


def itransformer(w, windows, marks):
    out = []
    for window, mark in zip(windows, marks):
        values, undo = normalised(window)
        tokens = linear(w, "enc_embedding.value_embedding", transpose(values) + transpose(mark))
        tokens = layer_norm(w, "encoder.norm", encoder(w, tokens))
        out.append(undo(transpose(linear(w, "projector", tokens)[:C])))
    return out


def patchtst(w, windows, _marks):
    undo, series = [], []
    for window in windows:
        values, back = normalised(window)
        undo.append(back)
        for column in transpose(values):
            column += [column[-1]] * STRIDE
            patches = [column[i : i + PATCH] for i in range(0, L + STRIDE - PATCH + 1, STRIDE)]
            tokens = linear(w, "patch_embedding.value_embedding", patches, bias=False)
            for position, token in enumerate(tokens):
                for f in range(D):
                    angle = position * math.exp(-math.log(10000) * (f - f % 2) / D)
                    token[f] += math.cos(angle) if f % 2 else math.sin(angle)
            series.append(encoder(w, tokens))
    # Batch norm in training: the statistics of all tokens of the batch.
    scale, shift = w["encoder.norm.1.weight"], w["encoder.norm.1.bias"]
    for f in range(D):
        every = [token[f] for tokens in series for token in tokens]
        mean = sum(every) / len(every)
        deviation = math.sqrt(sum((x - mean) ** 2 for x in every) / len(every) + 1e-5)
        for tokens in series:
            for token in tokens:
                token[f] = (token[f] - mean) / deviation * scale[f] + shift[f]
    out = []
    for n in range(B):
        flat = [sum(transpose(tokens), []) for tokens in series[n * C : (n + 1) * C]]
        out.append(undo[n](transpose(linear(w, "head.linear", flat))))
    return out


def layers():
    for i in range(LAYERS):
        name = f"encoder.attn_layers.{i}"
        for part in ("query", "key", "value", "out"):
            yield f"{name}.attention.{part}_projection", [D, D], True
        yield name + ".conv1", [F, D, 1], True
        yield name + ".conv2", [D, F, 1], True
        yield name + ".norm1", [D], True
        yield name + ".norm2", [D], True


PATCHES = (L + STRIDE - PATCH) // STRIDE + 1
MODELS = {
    "dlinear": (dlinear, [("Linear_Seasonal", [T, L], True), ("Linear_Trend", [T, L], True)]),
    "itransformer": (
        itransformer,
        [("enc_embedding.value_embedding", [D, L], True), *layers(), ("encoder.norm", [D], True), ("projector", [T, D], True)],
    ),
    "patchtst": (
        patchtst,
        [
            ("patch_embedding.value_embedding", [D, PATCH], False),
            *layers(),
            ("encoder.norm.1", [D], True),
            ("head.linear", [T, D * PATCHES], True),
        ],
    ),
}


def tensors(modules):
    for name, shape, bias in modules:
        yield name + ".weight", shape
        if bias:
            yield name + ".bias", shape[:1]


def cut(values, *shape):
    if len(shape) == 1:
        return values
    size = len(values) // shape[0]
    return [cut(values[i * size : (i + 1) * size], *shape[1:]) for i in range(shape[0])]


def main():
    windows = cut([f32(u) for u in fill("input.x", B * L * C)], B, L, C)
    marks = cut([f32(0.5 * u) for u in fill("input.mark", B * L * M)], B, L, M)
    target = [f32(u) for u in fill("input.y", B * T * C)]
    golden = {}
    for name, (model, modules) in MODELS.items():
        shapes = list(tensors(modules))
        w = {key: weight(key, shape) for key, shape in shapes}

        def run():
            y = [v for sample in model(w, windows, marks) for row in sample for v in row]
            return y, sum((p - t) ** 2 for p, t in zip(y, target)) / len(y)

        y, loss = run()
        slopes = {}
        for key, values in list(w.items()):
            direction, step = fill("check", len(values)), 1e-5
            sides = []
            for sign in (1, -1):
                w[key] = [v + sign * step * d for v, d in zip(values, direction)]
                sides.append(run()[1])
            w[key] = values
            slopes[key] = (sides[0] - sides[1]) / (2 * step)
        golden[name] = {
            "keys": shapes,
            "output": {
                "first": y[:6],
                "rms": math.sqrt(sum(v * v for v in y) / len(y)),
                "check": sum(v * c for v, c in zip(y, fill("check", len(y)))),
            },
            "loss": loss,
            "gradient_checks": slopes,
        }
    print(json.dumps(golden, indent=1))


main()
