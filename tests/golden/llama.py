"""Writes llama.json: Llama of transformers 5.23 with PyTorch 2.15, in f64; LoRA by hand, as PEFT has it.

    python tests/golden/llama.py > tests/golden/llama.json
"""

import torch
from torch import nn
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from filled import fill_model, gradient, keys, parameters, ruled, summary, whole, write

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def llama(vocabulary, width, heads, kv_heads, inner, layers, **others):
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=vocabulary, hidden_size=width, num_attention_heads=heads, num_key_value_heads=kv_heads,
        intermediate_size=inner, num_hidden_layers=layers, rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, attn_implementation="eager", **others,
    ))


TINY = (64, 32, 4, 2, 88, 2)


def tiny():
    return fill_model(llama(*TINY))


def lora_parameters(model, rank, targets):
    sizes = [layer.weight.shape for name, layer in model.named_modules() if name.split(".")[-1] in targets]
    return sum(rank * sum(size) for size in sizes)


def counts(*sizes):
    with torch.device("meta"):
        model = llama(*sizes)
    untied = parameters(model)
    return {
        "untied": untied,
        "tied": untied - model.lm_head.weight.numel(),
        "lora_r8_2targets": lora_parameters(model, 8, ["q_proj", "v_proj"]),
        "lora_r8_4targets": lora_parameters(model, 8, ALL[:4]),
        "lora_r16_7targets": lora_parameters(model, 16, ALL),
    }


class Lora(nn.Module):
    def __init__(self, base, name, rank, alpha):
        super().__init__()
        self.base, self.scale = base.requires_grad_(False), alpha / rank
        outputs, inputs = base.weight.shape
        self.lora_A = nn.Parameter(ruled(f"{name}.lora_A.weight", (rank, inputs)))
        self.lora_B = nn.Parameter(0.1 * ruled(f"{name}.lora_B.weight", (outputs, rank)))

    def forward(self, x):
        return self.base(x) + self.scale * F.linear(F.linear(x, self.lora_A), self.lora_B)


def adapted(model):
    model.requires_grad_(False)
    for i, layer in enumerate(model.model.layers):
        for target in ["q_proj", "v_proj"]:
            name = f"model.layers.{i}.self_attn.{target}"
            setattr(layer.self_attn, target, Lora(getattr(layer.self_attn, target), name, rank=4, alpha=8))
    return model


def loss(model, ids):
    logits = model(ids[:, :-1]).logits
    labels = ids[:, 1:].clone()
    labels[:, :5] = -100
    return logits, F.cross_entropy(logits.flatten(0, 1), labels.flatten())


ids = whole("input.ids", (2, 13), 64)
model = tiny()
logits, value = loss(model, ids)
value.backward()
named = dict(model.named_parameters())
shown = [
    "model.embed_tokens.weight",
    "model.layers.0.self_attn.q_proj.weight",
    "model.layers.0.self_attn.k_proj.weight",
    "model.layers.1.mlp.down_proj.weight",
    "model.layers.0.input_layernorm.weight",
    "lm_head.weight",
]

with_lora = adapted(tiny())
lora_value = loss(with_lora, ids)[1]
lora_value.backward()
first, second = (layer.self_attn for layer in with_lora.model.layers)

write({
    "llama_tiny_keys": keys(model),
    "llama_tiny": {
        "ids": ids.tolist(),
        "logits": summary(logits),
        "masked_loss(first5 labels ignored)": value.item(),
        "grads": {name: gradient(named[name]) for name in shown},
    },
    "llama_tiny_lora_r4_a8_qv": {
        "trainable": sum(p.numel() for p in with_lora.parameters() if p.requires_grad),
        "loss": lora_value.item(),
        "grad_l0_q_A": gradient(first.q_proj.lora_A),
        "grad_l0_q_B": gradient(first.q_proj.lora_B),
        "grad_l1_v_B": gradient(second.v_proj.lora_B),
        "note": "A=rule(name.lora_A.weight), B=0.1*rule(name.lora_B.weight)",
    },
    "counts": {
        "llama_tiny": counts(*TINY),
        "TinyLlama-1.1B": counts(32000, 2048, 32, 4, 5632, 22),
        "SmolLM2-135M(tied)": counts(49152, 576, 9, 3, 1536, 30),
        "llama-7B": counts(32000, 4096, 32, 32, 11008, 32),
    },
}, indent=1)
