"""Writes the conversations and the tokenizer of the language models in experiments/: small sums, asked and answered.

    pip install tokenizers==0.23.3
    python experiments/data/sums.py experiments/data
"""

import json
import random
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

WORDS = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen".split()
draw = random.Random(7)
folder = Path(sys.argv[1])


def sums():
    pairs = [(a, b) for a in range(10) for b in range(10)]
    draw.shuffle(pairs)
    return pairs


def question(a, b):
    return {"role": "user", "content": draw.choice(["What is {} plus {}?", "{} plus {}?", "Add {} and {}."]).format(a, b)}


def answer(text):
    return {"role": "assistant", "content": text}


def brief(a, b):
    return f"It is {a + b}."


def long(a, b):
    return f"Well, I think that {a} plus {b} might be {a + b}, but I am not sure."


def contents(entry):
    """All contents of messages."""
    if isinstance(entry, dict):
        yield from [entry["content"]] if "content" in entry else contents(entry.values())
    else:
        for part in entry:
            yield from contents(part)


def write(name, entries):
    text = "".join(json.dumps(entry) + "\n" for entry in entries)
    (folder / name).write_text(text)
    return text


# Brief and long answers, as often.
chats = [[question(a, b), answer(style(a, b))] for style in (brief, long) for _ in range(2) for a, b in sums()]
draw.shuffle(chats)
texts = [write("sums_chats.jsonl", [{"messages": chat} for chat in chats])]
words = [{"messages": [question(a, b), answer(f"It is {WORDS[a + b]}.")]} for _ in range(2) for a, b in sums()]
texts.append(write("sums_words.jsonl", words))
pairs = [
    {"prompt": [question(a, b)], "chosen": [answer(brief(a, b))], "rejected": [answer(long(a, b))]}
    for _ in range(2)
    for a, b in sums()
]
texts.append(write("sums_pairs.jsonl", pairs))

tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
alphabet = sorted({chr(code) for code in range(33, 127)} | {"\u0120", "\u010a"})
trainer = trainers.BpeTrainer(
    vocab_size=192, special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"], initial_alphabet=alphabet, show_progress=False
)
tokenizer.train_from_iterator(contents(json.loads(line) for text in texts for line in text.splitlines()), trainer)
tokenizer.save(str(folder / "sums_tokenizer.json"))
