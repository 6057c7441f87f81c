"""The models that ddprun and PyTorch are compared on: name -> (model, batch size, batch, loss, optimizer)."""
import torch
import torch.nn.functional as F
from torch import nn


def resnet18(classes, cifar_stem):
    import torchvision

    model = torchvision.models.resnet18(num_classes=classes)
    if cifar_stem:
        model.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        model.maxpool = nn.Identity()
    return model


def mlp():
    layers = [nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)]
    return nn.Sequential(*layers)


class Attention(nn.Module):
    """Causal, with packed projections."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width, False), nn.Linear(width, width, False)

    def forward(self, x):
        n, length, width = x.shape
        q, k, v = self.qkv(x).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(n, length, width))


class SeriesAttention(nn.Module):
    """With a projection for each of queries, keys and values, as the authors of iTransformer have it."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        n, length, width = x.shape
        q, k, v = (of(x).view(n, length, self.heads, -1).transpose(1, 2) for of in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(n, length, width))


def feed_forward(width, inner, bias):
    return nn.Sequential(nn.Linear(width, inner, bias), nn.GELU(), nn.Linear(inner, width, bias))


class GptBlock(nn.Module):
    """Pre-norm, without biases, as nanoGPT."""

    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(width, bias=False) for _ in range(2))
        self.attention = Attention(width, heads)
        self.mlp = feed_forward(width, 4 * width, False)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    def __init__(self, layers, heads, width, context, vocabulary=65):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(GptBlock(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width, bias=False)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))


class SeriesBlock(nn.Module):
    """Post-norm; each series is a token."""

    def __init__(self, width, heads, inner):
        super().__init__()
        self.attention = SeriesAttention(width, heads)
        self.mlp = feed_forward(width, inner, True)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x):
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.mlp(x))


class ITransformer(nn.Module):
    """Liu et al. 2024, for (batch, time, series)."""

    def __init__(self, steps=96, horizon=96, width=128, heads=8, inner=256, layers=2):
        super().__init__()
        self.embed, self.head = nn.Linear(steps, width), nn.Linear(width, horizon)
        self.blocks = nn.Sequential(*(SeriesBlock(width, heads, inner) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        mean = x.mean(1, keepdim=True).detach()
        std = (x.var(1, keepdim=True, unbiased=False) + 1e-5).sqrt().detach()
        series = self.embed(((x - mean) / std).transpose(1, 2))
        return self.head(self.norm(self.blocks(series))).transpose(1, 2) * std + mean


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=5e-4)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1)


def classes(outputs, labels):
    return F.cross_entropy(outputs.flatten(0, -2), labels.flatten())


def images(size, n_classes):
    return lambda n: (torch.randn(n, 3, size, size), torch.randint(n_classes, (n,)))


def text(context):
    return lambda n: (torch.randint(65, (n, context)), torch.randint(65, (n, context)))


def vectors(n):
    return torch.randn(n, 784), torch.randint(10, (n,))


def series(n):
    return torch.randn(n, 96, 321), torch.randn(n, 96, 321)


MODELS = {
    "resnet18_cifar": (lambda: resnet18(10, True), 128, images(32, 10), classes, sgd),
    "resnet18_imagenet": (lambda: resnet18(90, False), 16, images(224, 90), classes, sgd),
    "mlp": (mlp, 128, vectors, classes, sgd),
    "gpt_cpu": (lambda: Gpt(4, 4, 128, 64), 12, text(64), classes, adamw),
    "gpt_baby": (lambda: Gpt(6, 6, 384, 256), 12, text(256), classes, adamw),
    "itransformer": (ITransformer, 16, series, F.mse_loss, lambda p: torch.optim.Adam(p, lr=1e-4)),
}
