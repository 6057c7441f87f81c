"""Writes layers.json: layers of `graph` as PyTorch 2.15 and torchvision 0.29 have them, in f64: outputs, and gradients of
sum(output r).

    python tests/golden/layers.py > tests/golden/layers.json
"""

import torch
from torch import nn
from torchvision.ops import SqueezeExcitation

from filled import fill_model, given, gradient, summary, write

IMAGE, SEQUENCE = (2, 6, 5, 4), (2, 7, 6)


class Steps(nn.Module):
    """A layer over sequences (n, steps, features), where PyTorch's wants (n, features, steps)."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x.transpose(1, 2)).transpose(1, 2)


class Selected(nn.Module):
    def forward(self, x):
        return x[:, -2]


class ClassToken(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, 1, 6))

    def forward(self, x):
        return torch.cat([self.weight.expand(len(x), -1, -1), x], 1)


class States(nn.Module):
    """The states of a recurrent layer, without the last one apart."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[0]


class Last(nn.Module):
    """A recurrent network that answers from what each direction has read at its end."""

    def __init__(self, rnn, outputs):
        super().__init__()
        self.rnn = rnn
        self.fc = nn.Linear(rnn.hidden_size * (1 + rnn.bidirectional), outputs)

    def forward(self, x):
        y, h = self.rnn(x)[0], self.rnn.hidden_size
        if self.rnn.bidirectional:
            return self.fc(torch.cat([y[:, -1, :h], y[:, 0, h:]], 1))
        return self.fc(y[:, -1])


class Attention(nn.Module):
    """Causal attention of 3 heads of queries to one of keys and values, with rotary positions as HuggingFace's Llama."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(6, 10)
        self.proj = nn.Linear(6, 6)

    def turned(self, x):
        """(n, heads, t, 2): pairs of features turned by the position."""
        angle = torch.arange(x.shape[2], dtype=x.dtype)[:, None]
        first, second = x.chunk(2, -1)
        return torch.cat([first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()], -1)

    def forward(self, x):
        n, t, _ = x.shape
        q, k, v = self.qkv(x).split([6, 2, 2], -1)
        q, k, v = (part.reshape(n, t, -1, 2).transpose(1, 2) for part in (q, k, v))
        k, v = self.turned(k).repeat_interleave(3, 1), v.repeat_interleave(3, 1)
        y = nn.functional.scaled_dot_product_attention(self.turned(q), k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(n, t, 6))


class CrossAttention(nn.Module):
    """5 learnt queries of 4 features ask 7 steps of 6, in 2 heads."""

    def __init__(self):
        super().__init__()
        self.latents = nn.Module()
        self.latents.weight = nn.Parameter(torch.zeros(1, 5, 4))
        self.q, self.kv, self.proj = nn.Linear(4, 4), nn.Linear(6, 8), nn.Linear(4, 4)

    def forward(self, x):
        heads = lambda part: part.reshape(len(x), -1, 2, 2).transpose(1, 2)
        q = self.q(self.latents.weight).expand(len(x), -1, -1)
        k, v = self.kv(x).chunk(2, -1)
        y = nn.functional.scaled_dot_product_attention(heads(q), heads(k), heads(v))
        return self.proj(y.transpose(1, 2).reshape(len(x), 5, 4))


class Padded(nn.Module):
    """Of recordings of 7 and 4 steps, padded to 7: a convolution of stride 2, attention of 3 heads that hides the padding,
    and the mean of what is left."""

    lengths = torch.tensor([7, 4])

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(6, 6, 3, 2, 1)
        self.attention = nn.Module()
        self.attention.qkv, self.attention.proj = nn.Linear(6, 18), nn.Linear(6, 6)

    def forward(self, x):
        x = self.conv(x.transpose(1, 2)).transpose(1, 2)
        n, t, _ = x.shape
        is_padding = torch.arange(t) >= (self.lengths[:, None] + 1) // 2
        qkv, proj = self.attention.qkv, self.attention.proj
        heads = [part.reshape(n, t, 3, 2).transpose(1, 2) for part in qkv(x).chunk(3, -1)]
        y = nn.functional.scaled_dot_product_attention(*heads, attn_mask=~is_padding[:, None, None, :])
        y = proj(y.transpose(1, 2).reshape(n, t, 6))
        theirs = nn.MultiheadAttention(6, 3, batch_first=True).double()
        theirs.load_state_dict({
            "in_proj_weight": qkv.weight, "in_proj_bias": qkv.bias,
            "out_proj.weight": proj.weight, "out_proj.bias": proj.bias,
        })
        torch.testing.assert_close(theirs(x, x, x, key_padding_mask=is_padding)[0], y)
        keep = (~is_padding)[..., None].double()
        return (y * keep).sum(1) / keep.sum(1)


class Gated(nn.Module):
    """x silu(w x), as in a gated linear unit."""

    def __init__(self):
        super().__init__()
        self.w = nn.Linear(6, 6)

    def forward(self, x):
        return x * nn.functional.silu(self.w(x))


def case(layer, shape, mode="train"):
    """Parameters of the layer are called `l.…`, those of layers inside as the layer calls them."""
    holder = nn.Module()
    holder.l = layer.layer if isinstance(layer, (Steps, States)) else layer
    holder = layer if isinstance(layer, Last) else holder
    fill_model(holder)
    layer.train(mode == "train")
    x = (3 * given("input.x", shape)).requires_grad_()
    y = layer(x)
    (y * given("input.r", tuple(y.shape))).sum().backward()
    return {
        "output": summary(y.flatten(1)),
        "input": gradient(x),
        "grads": {name: gradient(p) for name, p in holder.named_parameters()},
        "after": {name: summary(b) for name, b in holder.named_buffers() if b.is_floating_point()},
    }


write({
    "leaky_relu": case(nn.LeakyReLU(0.2), IMAGE),
    "relu6": case(nn.ReLU6(), IMAGE),
    "hardswish": case(nn.Hardswish(), IMAGE),
    "hardsigmoid": case(nn.Hardsigmoid(), IMAGE),
    "mish": case(nn.Mish(), IMAGE),
    "softmax": case(nn.Softmax(dim=1), IMAGE),
    "group_norm": case(nn.GroupNorm(3, 6, eps=1e-3), IMAGE),
    "instance_norm": case(nn.InstanceNorm2d(6, eps=1e-3), IMAGE),
    "instance_norm_affine": case(Steps(nn.InstanceNorm1d(6, affine=True)), SEQUENCE),
    "rms_norm": case(nn.RMSNorm(6), SEQUENCE),
    "layer_norm": case(nn.LayerNorm(6, eps=1e-2), SEQUENCE),
    "batch_norm": case(nn.BatchNorm2d(6, eps=1e-2, momentum=0.3), IMAGE),
    "attention": case(Attention(), SEQUENCE),
    "cross_attention": case(CrossAttention(), SEQUENCE),
    "padded": case(Padded(), SEQUENCE),
    "max_pool1d": case(Steps(nn.MaxPool1d(3, 2, 1)), SEQUENCE),
    "max_pool1d_dilated": case(Steps(nn.MaxPool1d(3, 1, 1, 2)), SEQUENCE),
    "avg_pool1d": case(Steps(nn.AvgPool1d(3, 2, 1)), SEQUENCE),
    "max_pool2d": case(nn.MaxPool2d((3, 2), (2, 1), (1, 1), (2, 1)), IMAGE),
    "avg_pool2d": case(nn.AvgPool2d((2, 3), (1, 2), (1, 0)), IMAGE),
    "max_pool1d_ceil": case(Steps(nn.MaxPool1d(2, ceil_mode=True)), SEQUENCE),
    "avg_pool1d_ceil": case(Steps(nn.AvgPool1d(2, ceil_mode=True)), SEQUENCE),
    "avg_pool1d_inside": case(Steps(nn.AvgPool1d(3, 2, 1, count_include_pad=False)), SEQUENCE),
    "max_pool2d_ceil": case(nn.MaxPool2d((2, 3), 2, (1, 0), ceil_mode=True), IMAGE),
    "avg_pool2d_ceil": case(nn.AvgPool2d(3, 2, 1, ceil_mode=True), IMAGE),
    "avg_pool2d_inside": case(nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False), IMAGE),
    "adaptive_avg_pool2d": case(nn.AdaptiveAvgPool2d((3, 7)), IMAGE),
    "upsample": case(nn.Upsample(scale_factor=2), IMAGE),
    "upsample_bilinear": case(nn.Upsample(scale_factor=3, mode="bilinear"), IMAGE),
    "conv2d": case(nn.Conv2d(6, 4, (3, 2), (2, 1), (2, 1), (2, 3)), IMAGE),
    "conv2d_groups": case(nn.Conv2d(6, 4, 3, 2, 2, 2, groups=2), IMAGE),
    "conv2d_same": case(nn.Conv2d(6, 4, (2, 3), padding="same", dilation=(1, 2)), IMAGE),
    "conv1d": case(Steps(nn.Conv1d(6, 4, 3, 2, 2, 2)), SEQUENCE),
    "conv1d_same": case(Steps(nn.Conv1d(6, 4, 4, padding="same")), SEQUENCE),
    "conv_transpose2d": case(nn.ConvTranspose2d(6, 4, 3, 2, 1, 1, groups=2), IMAGE),
    "select": case(Selected(), SEQUENCE),
    "class_token": case(ClassToken(), SEQUENCE),
    "product": case(Gated(), SEQUENCE),
    "lstm": case(States(nn.LSTM(6, 4, 2, batch_first=True, bidirectional=True)), SEQUENCE),
    "gru": case(States(nn.GRU(6, 4, 2, batch_first=True, bidirectional=True)), SEQUENCE),
    "rnn_relu": case(States(nn.RNN(6, 4, nonlinearity="relu", batch_first=True)), SEQUENCE),
    "rnn": case(States(nn.RNN(6, 4, batch_first=True)), SEQUENCE),
    "model_lstm": case(Last(nn.LSTM(6, 5, 2, batch_first=True), 8), SEQUENCE),
    "model_gru": case(Last(nn.GRU(6, 5, batch_first=True, bidirectional=True), 8), SEQUENCE),
    "squeeze_excitation": case(SqueezeExcitation(6, 2), IMAGE),
}, indent=1)
