"""Writes lora_variants.json: variants of LoRA as PEFT 0.21 computes them, on the tiny Llama of llama.py (transformers 5.24, PyTorch 2.15)
in f64: losses, gradients, and the names and shapes of what PEFT saves.

    python tests/golden/lora_variants.py > tests/golden/lora_variants.json
"""

import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from filled import fill_model, gradient, ruled, whole, write

VARIANTS = {
    "rslora": {"target_modules": ["q_proj", "v_proj"], "use_rslora": True},
    "dora": {"target_modules": ["q_proj", "down_proj"], "use_dora": True},
    "all_linear": {"target_modules": "all-linear"},
    "regex": {"target_modules": r".*\.1\.(self_attn\.[qk]|mlp\.up)_proj"},
    "patterns": {
        "target_modules": ["self_attn.q_proj", "o_proj", "up_proj"],
        "rank_pattern": {"up_proj": 2, r"layers\.0\.self_attn\.q_proj": 6},
        "alpha_pattern": {"o_proj": 3},
        "use_rslora": True,
    },
    "modules_to_save": {"target_modules": ["v_proj"], "modules_to_save": ["lm_head", "norm"], "use_dora": True},
}
PREFIX = "base_model.model."


def own(name):
    """ddprun's name of a parameter."""
    name = name.removeprefix(PREFIX)
    for part in [".default", ".modules_to_save", ".base_layer"]:
        name = name.replace(part, "")
    return name.replace("lora_magnitude_vector.weight", "lora_magnitude_vector")


def llama():
    return fill_model(LlamaForCausalLM(LlamaConfig(
        vocab_size=64, hidden_size=32, num_attention_heads=4, num_key_value_heads=2, intermediate_size=88,
        num_hidden_layers=2, rms_norm_eps=1e-5, rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        attn_implementation="eager",
    )))


def variant(options):
    model = get_peft_model(llama(), LoraConfig(r=4, lora_alpha=8, task_type="CAUSAL_LM", **options)).double()
    trained = {own(name): value for name, value in model.named_parameters() if value.requires_grad}
    with torch.no_grad():
        for name, value in trained.items():
            factor = 0.1 if name.endswith("lora_B.weight") else 1
            value.copy_(factor * ruled(name, tuple(value.shape)))
    ids = whole("input.ids", (2, 13), 64)
    labels = ids[:, 1:].clone()
    labels[:, :5] = -100
    loss = F.cross_entropy(model(ids[:, :-1]).logits.flatten(0, 1), labels.flatten())
    loss.backward()
    saved = get_peft_model_state_dict(model)
    config = {key: options.get(key) for key in ["target_modules", "use_rslora", "use_dora", "rank_pattern",
                                                "alpha_pattern", "modules_to_save"]}
    return {
        "config": config,
        "loss": loss.item(),
        "grads": {name: gradient(value) for name, value in trained.items()},
        "saved": {name: list(value.shape) for name, value in sorted(saved.items())},
    }


torch.manual_seed(0)
write({name: variant(options) for name, options in VARIANTS.items()}, indent=1)
