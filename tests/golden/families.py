"""Writes families.json: the families of language models of transformers 5.24 with PyTorch 2.15, in f64, whose weights follow
from their names; and their config.json, as transformers writes it.

    python tests/golden/families.py > tests/golden/families.json

With a folder, it loads what `ddprun checkpoint export RUN FOLDER --names transformers` wrote there instead, strictly, and
prints the loss of the first tokens:

    python tests/golden/families.py FOLDER
"""

import sys

import torch
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForCausalLM

from filled import gradient, keys, ruled, summary, whole, write

VOCABULARY, LENGTH = 64, 24
SIZES = dict(
    vocab_size=VOCABULARY, hidden_size=32, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48,
    num_hidden_layers=2, max_position_embeddings=64, bos_token_id=None, eos_token_id=None, pad_token_id=None,
)
FACTORS = [1.0 + 0.25 * i for i in range(4)]


def longrope(original):
    return dict(
        original_max_position_embeddings=original, partial_rotary_factor=1.0,
        rope_scaling={"type": "longrope", "short_factor": FACTORS, "long_factor": [4 * f for f in FACTORS]},
    )


def without(*names):
    return {name: value for name, value in SIZES.items() if name not in names}


# Name, model_type, the class's own arguments.
FAMILIES = {
    "llama": ("llama", SIZES | dict(attention_bias=True, mlp_bias=True, head_dim=6, hidden_act="gelu")),
    "llama_yarn": ("llama", SIZES | dict(rope_scaling={
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 2.0})),
    "llama_mscale": ("llama", SIZES | dict(rope_scaling={
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "mscale": 0.7,
        "mscale_all_dim": 0.3})),
    "llama_dynamic": ("llama", SIZES | dict(max_position_embeddings=16,
                                            rope_scaling={"rope_type": "dynamic", "factor": 2.0})),
    "mistral": ("mistral", SIZES | dict(sliding_window=7, head_dim=10)),
    "qwen2": ("qwen2", SIZES | dict(use_sliding_window=True, sliding_window=5, max_window_layers=1)),
    "qwen2_tied": ("qwen2", SIZES | dict(tie_word_embeddings=True)),
    "qwen3": ("qwen3", SIZES | dict(head_dim=12, rope_theta=1e6)),
    "gemma2": ("gemma2", SIZES | dict(head_dim=12, sliding_window=6, query_pre_attn_scalar=20,
                                      attn_logit_softcapping=0.4, final_logit_softcapping=0.7)),
    "gemma3": ("gemma3_text", SIZES | dict(
        head_dim=12, sliding_window=6, sliding_window_pattern=2, query_pre_attn_scalar=20,
        rope_scaling={"rope_type": "linear", "factor": 8.0}, rope_local_base_freq=100.0)),
    "phi3": ("phi3", SIZES | dict(sliding_window=9) | longrope(32)),
    "phi3_long": ("phi3", SIZES | longrope(16)),
    "phi4_mini": ("phi3", SIZES | dict(partial_rotary_factor=0.75, tie_word_embeddings=True)),
    "smollm3": ("smollm3", SIZES | dict(no_rope_layer_interval=2)),
    "olmo2": ("olmo2", SIZES),
    "granite": ("granite", SIZES | dict(embedding_multiplier=12.0, residual_multiplier=0.22,
                                        attention_multiplier=0.3, logits_scaling=8.0)),
    "gpt_neox": ("gpt_neox", without("num_key_value_heads") | dict(rotary_pct=0.5)),
    "gpt_neox_serial": ("gpt_neox", without("num_key_value_heads") | dict(
        rotary_pct=1.0, use_parallel_residual=False, attention_bias=False)),
    "opt": ("opt", without("num_key_value_heads", "intermediate_size") | dict(
        ffn_dim=48, word_embed_proj_dim=32, dropout=0.0)),
}


def loss(model, ids):
    logits = model(ids[:, :-1]).logits
    labels = ids[:, 1:].clone()
    labels[:, :5] = -100
    return logits, F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def in_file(name, model_type):
    """The name of a tensor in a file, where transformers 5 has another in memory."""
    return name.replace("lm_head.", "embed_out.") if model_type == "gpt_neox" else name


def shown(model, model_type):
    """The embedding, the head, and the parameters of the last layer."""
    named = {in_file(name, model_type): parameter for name, parameter in model.named_parameters()}
    last = [name for name in named if ".layers.1." in name]
    return {name: gradient(named[name]) for name in [next(iter(named)), *last, [*named][-1]]}


def golden(model_type, arguments, ids):
    config = AutoConfig.for_model(model_type, **arguments)
    config._attn_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config).double().eval()
    with torch.no_grad():
        # A tied head is named after the embedding.
        for name, value in model.named_parameters():
            value.copy_(ruled(in_file(name, model_type), tuple(value.shape)))
    logits, value = loss(model, ids)
    value.backward()
    # As written in a file before transformers 5, and as transformers 5 writes it.
    old = {"model_type": model_type} | arguments
    return {
        "config": old,
        "written": {key: value for key, value in config.to_dict().items() if key != "transformers_version"},
        "keys": [[in_file(name, model_type), shape] for name, shape in keys(model)],
        "logits": summary(logits),
        "loss": value.item(),
        "gradients": shown(model, model_type),
    }


ids = whole("input.ids", (2, LENGTH + 1), VOCABULARY)
if len(sys.argv) > 1:
    model, info = AutoModelForCausalLM.from_pretrained(sys.argv[1], output_loading_info=True)
    print(type(model).__name__, {key: len(value) for key, value in info.items()}, loss(model.eval(), ids)[1].item())
    sys.exit(any(info.values()))
write({"ids": ids.tolist()} | {name: golden(*family, ids) for name, family in FAMILIES.items()})
