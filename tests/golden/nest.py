"""Writes nest.json: NeMo's masked-token pre-training of a FastConformer (Huang et al. 2024), written again in PyTorch 2.15,
in f64, and its log-mel features.

    python tests/golden/nest.py > tests/golden/nest.json
"""

import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from filled import fill_model, given, gradient, keys, parameters, summary, write


def valid(lengths, n):
    return torch.arange(n)[None] < lengths[:, None]


class Subsampling(nn.Module):
    """Three convolutions of stride 2; frames past the length are zeroed before each layer."""

    def __init__(self, mels, width, channels):
        super().__init__()
        self.out = nn.Linear(channels * math.ceil(mels / 8), width)
        first = nn.Conv2d(1, channels, 3, 2, 1)
        depthwise = lambda: nn.Conv2d(channels, channels, 3, 2, 1, groups=channels)
        pointwise = lambda: nn.Conv2d(channels, channels, 1)
        self.conv = nn.Sequential(
            first, nn.ReLU(), depthwise(), pointwise(), nn.ReLU(), depthwise(), pointwise(), nn.ReLU()
        )

    def forward(self, x, lengths):
        x = x.transpose(1, 2)[:, None]
        cut = lambda x: x * valid(lengths, x.shape[2])[:, None, :, None]
        for layer in self.conv:
            x = layer(cut(x))
            if isinstance(layer, nn.Conv2d) and layer.stride[0] == 2:
                lengths = (lengths - 1) // 2 + 1
        return self.out(cut(x).transpose(1, 2).flatten(2)), lengths


class FeedForward(nn.Module):
    def __init__(self, width, bias):
        super().__init__()
        self.linear1, self.linear2 = nn.Linear(width, 4 * width, bias), nn.Linear(4 * width, width, bias)

    def forward(self, x):
        return self.linear2(F.silu(self.linear1(x)))


class Attention(nn.Module):
    """With relative positions, as Transformer-XL."""

    def __init__(self, width, heads, bias):
        super().__init__()
        self.heads = heads
        self.pos_bias_u = nn.Parameter(torch.zeros(heads, width // heads))
        self.pos_bias_v = nn.Parameter(torch.zeros(heads, width // heads))
        self.linear_q, self.linear_k, self.linear_v, self.linear_out = (
            nn.Linear(width, width, bias) for _ in range(4)
        )
        self.linear_pos = nn.Linear(width, width, bias=False)

    def forward(self, x, positions, allowed):
        b, t, d = x.shape
        split = lambda y: y.view(y.shape[0], -1, self.heads, d // self.heads)
        q, k, v = (split(linear(x)) for linear in (self.linear_q, self.linear_k, self.linear_v))
        p = split(self.linear_pos(positions[None])).transpose(1, 2)
        k, v = k.transpose(1, 2), v.transpose(1, 2)
        by_content = (q + self.pos_bias_u).transpose(1, 2) @ k.transpose(2, 3)
        by_place = F.pad((q + self.pos_bias_v).transpose(1, 2) @ p.transpose(2, 3), (1, 0))
        by_place = by_place.view(b, self.heads, -1, t)[:, :, 1:].reshape(b, self.heads, t, -1)[..., :t]
        scores = (by_content + by_place) / math.sqrt(d // self.heads)
        scores = scores.masked_fill(~allowed[:, None], -10000.0)
        weights = scores.softmax(-1).masked_fill(~allowed[:, None], 0.0)
        return self.linear_out((weights @ v).transpose(1, 2).reshape(b, t, d))


class Convolution(nn.Module):
    def __init__(self, width, kernel, bias):
        super().__init__()
        self.pointwise_conv1 = nn.Conv1d(width, 2 * width, 1, bias=bias)
        self.depthwise_conv = nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width, bias=bias)
        self.batch_norm = nn.BatchNorm1d(width)
        self.pointwise_conv2 = nn.Conv1d(width, width, 1, bias=bias)

    def forward(self, x, mask):
        x = F.glu(self.pointwise_conv1(x.transpose(1, 2)), 1) * mask[:, None]
        return self.pointwise_conv2(F.silu(self.batch_norm(self.depthwise_conv(x)))).transpose(1, 2)


class Layer(nn.Module):
    def __init__(self, width, heads, kernel, bias):
        super().__init__()
        self.norm_feed_forward1, self.feed_forward1 = nn.LayerNorm(width), FeedForward(width, bias)
        self.norm_conv, self.conv = nn.LayerNorm(width), Convolution(width, kernel, bias)
        self.norm_self_att, self.self_attn = nn.LayerNorm(width), Attention(width, heads, bias)
        self.norm_feed_forward2, self.feed_forward2 = nn.LayerNorm(width), FeedForward(width, bias)
        self.norm_out = nn.LayerNorm(width)

    def forward(self, x, positions, mask):
        r = x + 0.5 * self.feed_forward1(self.norm_feed_forward1(x))
        r = r + self.self_attn(self.norm_self_att(r), positions, mask[:, :, None] & mask[:, None])
        r = r + self.conv(self.norm_conv(r), mask)
        r = r + 0.5 * self.feed_forward2(self.norm_feed_forward2(r))
        return self.norm_out(r)


class Encoder(nn.Module):
    def __init__(self, mels, width, heads, layers, channels, kernel, bias=True):
        super().__init__()
        self.scale = math.sqrt(width)
        self.pre_encode = Subsampling(mels, width, channels)
        self.layers = nn.ModuleList(Layer(width, heads, kernel, bias) for _ in range(layers))

    def forward(self, x, lengths, seen=None):
        """(b, width, t), lengths."""
        x, lengths = self.pre_encode(x, lengths)
        if seen is not None:
            seen.append(x)
        t, d = x.shape[1:]
        offsets = torch.arange(t - 1, -t, -1, dtype=torch.float64)
        waves = torch.exp(torch.arange(0, d, 2, dtype=torch.float64) * -(math.log(10000) / d))
        angles = offsets[:, None] * waves
        positions = torch.stack([angles.sin(), angles.cos()], 2).flatten(1)
        x = x * self.scale
        for layer in self.layers:
            x = layer(x, positions, valid(lengths, t))
            if seen is not None:
                seen.append(x)
        return x.transpose(1, 2), lengths


class Decoder(nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.decoder_layers = nn.Sequential(nn.Conv1d(width, classes, 1))

    def forward(self, x):
        return F.log_softmax(self.decoder_layers(x).transpose(1, 2), -1)


class Quantizer(nn.Module):
    """A frozen random projection, and the nearest of frozen random codes."""

    def __init__(self, inputs, codes, width):
        super().__init__()
        self.register_buffer("codebooks", torch.zeros(1, codes, width))
        self.proj = nn.Linear(inputs, width, bias=False).requires_grad_(False)

    def forward(self, x):
        stacked = x.transpose(1, 2).reshape(x.shape[0], -1, self.proj.in_features)
        projected = F.normalize(self.proj(stacked), dim=-1)
        return torch.cdist(projected, self.codebooks.expand(len(x), -1, -1)).argmin(-1)


class Mask(nn.Module):
    def __init__(self, mels):
        super().__init__()
        self.mask_embedding = nn.Parameter(torch.zeros(mels), requires_grad=False)

    def forward(self, x, masked):
        return torch.where(masked[:, None], self.mask_embedding[None, :, None], x)


class Nest(nn.Module):
    def __init__(self, mels, width, heads, layers, channels, kernel, codes, code, bias=True):
        super().__init__()
        self.encoder = Encoder(mels, width, heads, layers, channels, kernel, bias)
        self.decoder = Decoder(width, codes)
        self.quantizer = Quantizer(8 * mels, codes, code)
        self.mask_processor = Mask(mels)


def counts(width, heads, layers, bias=True):
    with torch.device("meta"):
        model = Nest(80, width, heads, layers, 256, 9, 8192, 16, bias)
    frozen = model.quantizer.codebooks.numel() + model.quantizer.proj.weight.numel()
    encoder, decoder = parameters(model.encoder), parameters(model.decoder)
    return {
        "encoder": encoder,
        "decoder": decoder,
        "quantizer_frozen": frozen,
        "mask_frozen": 80,
        "trainable": encoder + decoder,
        "total": encoder + decoder + frozen + 80,
    }


def tiny():
    model = fill_model(Nest(16, 24, 4, 2, 8, 5, 32, 8))
    model.quantizer.codebooks = F.normalize(given("quantizer.codebooks", (1, 32, 8)).float().double(), dim=-1)
    return model


def tiny_case():
    clean = given("input.clean", (2, 16, 96))
    noisy = clean + 0.3 * given("input.noise", (2, 16, 96))
    lengths = torch.tensor([96, 72])
    masked = torch.zeros(2, 96, dtype=torch.bool)
    masked[0, 10:42] = masked[1, 30:70] = True
    model = tiny()
    tokens = model.quantizer(clean)
    covered = masked.view(2, 12, 8).double().mean(2) > 0.8
    heard = model.mask_processor(noisy, masked)
    evaluated = model.eval().encoder(heard, lengths)[0]
    states = []
    encoded, encoded_lengths = model.train().encoder(heard, lengths, states)
    scores = model.decoder(encoded)
    loss = F.nll_loss(scores[covered], tokens[covered])
    loss.backward()
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    statistics = [(name, value) for name, value in model.state_dict().items() if "running" in name]
    return model, {
        "tokens": tokens.tolist(),
        "encoded_len": encoded_lengths.tolist(),
        "masked_frames": covered.int().tolist(),
        "n_masked": int(covered.sum()),
        "after_subsampling": summary(states[0]),
        "after_layer0": summary(states[1]),
        "encoder_out": summary(encoded),
        "logprobs": summary(scores[..., None]),
        "loss_train_mode": loss.item(),
        "grads": {name: gradient(parameter) for name, parameter in trained},
        "bn_after": {name: summary(value) for name, value in statistics},
        "eval_encoder_out": summary(evaluated),
    }


def slaney(hertz):
    """Mels that are linear below 1 kHz and logarithmic above."""
    return np.where(hertz < 1000, hertz * 3 / 200, 15 + 27 * np.log(np.maximum(hertz, 1e-9) / 1000) / np.log(6.4))


def of_slaney(mels):
    return np.where(mels < 15, mels * 200 / 3, 1000 * 6.4 ** ((mels - 15) / 27))


def filters(n=80, fft=512, rate=16000):
    """(n, fft / 2 + 1): triangles of area 1."""
    edges = of_slaney(np.linspace(0.0, slaney(np.array(rate / 2)), n + 2))
    bins = np.linspace(0, rate / 2, fft // 2 + 1)
    rising = (bins[None] - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - bins[None]) / (edges[2:] - edges[1:-1])[:, None]
    triangles = np.maximum(0, np.minimum(rising, falling))
    # NeMo keeps them in f32.
    return torch.tensor(triangles * (2 / (edges[2:] - edges[:-2]))[:, None]).float().double()


def mel_features():
    time = torch.arange(16000, dtype=torch.float64) / 16000
    tone = lambda hertz: (2 * math.pi * hertz * time).sin()
    first = 0.3 * tone(440) + 0.2 * tone(1234.5) + 0.05 * given("audio.noise", (16000,))
    audio = torch.stack([first, 0.5 * given("audio.noise2", (16000,))])
    samples = torch.tensor([16000, 12000])
    audio = audio * valid(samples, 16000)
    emphasized = torch.cat([audio[:, :1], audio[:, 1:] - 0.97 * audio[:, :-1]], 1) * valid(samples, 16000)
    window = torch.hann_window(400, periodic=False).double()
    spectrum = torch.stft(
        emphasized, 512, 160, 400, window, center=True, pad_mode="constant", return_complex=True
    ).abs().square()
    raw = (filters() @ spectrum + 2**-24).log()
    lengths = samples // 160
    padded = torch.zeros(2, 80, 112, dtype=torch.float64)
    for i, n in enumerate(lengths):
        part = raw[i, :, :n]
        padded[i, :, :n] = (part - part.mean(1, keepdim=True)) / (part.std(1, keepdim=True) + 1e-5)
    return {
        "lengths": lengths.tolist(),
        "raw_log_mel": summary(raw),
        "normalised_padded": summary(padded),
        "norm[0,:4,0]": padded[0, :4, 0].tolist(),
    }


model, case = tiny_case()
write({
    "param_counts": {
        "small": counts(176, 4, 16),
        "medium": counts(256, 4, 16),
        "large": counts(512, 8, 17),
        "large18_released": counts(512, 8, 18),
        "xlarge": counts(1024, 8, 24, bias=False),
    },
    "tiny_keys": keys(model),
    "tiny_params": sum(value.numel() for value in model.state_dict().values() if value.is_floating_point())
    - sum(value.numel() for name, value in model.state_dict().items() if "running" in name),
    "tiny": case,
    "mel_features": mel_features(),
}, indent=1)
