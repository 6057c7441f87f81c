"""Writes chat.json and chat/tokenizer.json: what transformers' `apply_chat_template` makes of conversations by templates in
the manner of published ones, with the tokens of a tokenizer of bytes and its special tokens, and which of them are answers.

    python tests/golden/chat.py
"""

import json
from pathlib import Path

import tokenizers
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

HERE = Path(__file__).parent
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "[INST]", "[/INST]"]

TEMPLATES = {
    # Whitespace is trimmed by tags, and answers are marked.
    "marked": """{%- if messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content | trim + '<|im_end|>\\n' }}
    {%- set rest = messages[1:] %}
{%- else %}
    {%- set rest = messages %}
{%- endif %}
{%- for message in rest %}
    {%- if message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {% generation %}
        {{- message.content + '<|im_end|>' }}
        {% endgeneration %}
        {{- '\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
""",
    # As Llama 2's and Mistral's: roles alternate, or an exception is raised.
    "inst": """{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}{% set loop_messages = messages[1:] %}{% else %}{% set system = false %}{% set loop_messages = messages %}{% endif %}{{ bos_token }}{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if loop.index0 == 0 and system %}{% set content = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}""",
    # As Qwen's: namespaces, reversed lists, tests, split and tojson.
    "tools": """{%- set ns = namespace(last=-1) %}
{%- for message in messages[::-1] %}
{%- if ns.last == -1 and message.role == 'user' %}{% set ns.last = messages | length - 1 - loop.index0 %}{% endif %}
{%- endfor %}
{%- for message in messages %}
{%- if message.content is string %}{% set content = message.content %}{% else %}{% set content = '' %}{% endif %}
{%- if message.role == 'assistant' and '</think>' in content %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}
{%- endif %}
{{- '<|im_start|>' ~ message.role ~ ('!' if loop.index0 == ns.last else '') ~ '\\n' ~ content }}
{%- if message.tool_calls is defined and message.tool_calls %}
{%- for call in message.tool_calls %}
{{- '\\n<call>' ~ (call.function | tojson) ~ '</call>' }}
{%- endfor %}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- if loop.first and tools is not none %}{{ 'tools' }}{% endif %}
{%- if message.role == 'stop' %}{% break %}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
""",
    # As Qwen 2.5's and Llama 3.1's: functions, calls as text or objects, answers of functions, and a switch.
    "functions": """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for document in documents or [] %}{{- '[' + document.title + ']\\n' }}{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'assistant' and message.tool_calls %}
        {{- '<|im_start|>assistant' }}
        {%- if message.content %}{{- '\\n' + message.content }}{%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '\\n{"name": "' + tool_call.name + '", "arguments": ' }}
            {{- tool_call.arguments if tool_call.arguments is string else tool_call.arguments | tojson }}
            {{- '}' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + ('user' if message.role == 'tool' else message.role) + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think></think>' }}{%- endif %}
{%- endif %}
""",
    "chatml": "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
}

say = lambda role, content, **more: {"role": role, "content": content, **more}
call = {"function": {"name": "wéather", "arguments": {"city": "Köln <3", "days": [1, 2.5, None, True]}}}
tool = {
    "type": "function",
    "function": {
        "name": "wéather",
        "description": "Says <how> it is & why",
        "parameters": {"type": "object", "properties": {"city": {"type": "string", "default": None}}, "required": ["city"]},
    },
}
# Variables that a template may be given.
VARIABLES = [{"tools": [tool]}, {"tools": [tool, tool], "documents": [{"title": "T", "text": "x"}], "enable_thinking": False}]
CHATS = {
    "short": [say("user", " Hi! "), say("assistant", "Hello, wörld.")],
    "system": [
        say("system", " Be brief. "),
        say("user", "2+2?"),
        say("assistant", "4"),
        say("user", "And 3+3?\n\nThink."),
        say("assistant", "<think>\nhm\n</think>\n\n6"),
    ],
    "tools": [say("user", "Weather?"), say("assistant", None, tool_calls=[call]), say("tool", "sunny"), say("assistant", "Sunny.")],
    "wrong": [say("assistant", "I"), say("user", "you")],
}


def tokenizer():
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken(word, special=True) for word in SPECIAL])
    inner.save(str(HERE / "chat/tokenizer.json"), pretty=False)
    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>")


def entry(words, template, messages, asks, variables={}):
    made = {"add_generation_prompt": asks, "messages": messages, "variables": variables}
    asked = {"chat_template": template, "add_generation_prompt": asks, **variables}
    try:
        made["text"] = words.apply_chat_template(messages, tokenize=False, **asked)
    except Exception as error:
        return {**made, "error": str(error)}
    found = words.apply_chat_template(
        messages,
        **asked,
        return_dict=True,
        return_assistant_tokens_mask="generation" in template.replace("add_generation", ""),
    )
    made["tokens"] = list(found["input_ids"])
    if "assistant_masks" in found:
        made["answers"] = list(found["assistant_masks"])
    return made


words = tokenizer()
golden = {
    "transformers": transformers.__version__,
    "tokenizers": tokenizers.__version__,
    "templates": {
        name: {
            "template": template,
            "chats": [
                entry(words, template, messages, asks)
                for kind, messages in CHATS.items()
                if not (kind == "tools" and name not in ("tools", "functions"))
                for asks in (False, True)
            ]
            + [entry(words, template, CHATS["tools"], asks, given) for given in VARIABLES for asks in (False, True) if name == "functions"],
        }
        for name, template in TEMPLATES.items()
    },
}
(HERE / "chat.json").write_text(json.dumps(golden, ensure_ascii=False) + "\n")
