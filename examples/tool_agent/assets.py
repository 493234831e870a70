"""Makes what the training needs, offline: a tokenizer, a tiny Qwen2 that can call the calculator, and the data.

    python assets.py FOLDER [--steps 500]

Writes FOLDER/model, FOLDER/train.parquet and FOLDER/val.parquet. Does nothing when they are there.
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path

import pandas as pd
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

SPECIAL = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
]
# ChatML with hermes tool calls, as verl's parser for `multi_turn.format=hermes` reads them.
CHAT_TEMPLATE = """\
{%- if tools %}<|im_start|>system
Tools: {% for tool in tools %}{{ tool['function']['name'] }} {% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message['role'] == 'tool' %}<|im_start|>user
<tool_response>
{{ message['content'] }}
</tool_response><|im_end|>
{% elif message['role'] == 'assistant' and message.get('tool_calls') %}<|im_start|>assistant
{{ message['content'] or '' }}{% for call in message['tool_calls'] %}<tool_call>
{"name": "{{ call['function']['name'] }}", "arguments": {{ call['function']['arguments'] | tojson if call['function']['arguments'] is mapping else call['function']['arguments'] }}}
</tool_call>{% endfor %}<|im_end|>
{% else %}<|im_start|>{{ message['role'] }}
{{ message['content'] }}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
LARGEST = 29
BATCH, IGNORED = 16, -100


def conversation(a: int, b: int) -> list[tuple[str, bool]]:
    """A made-up chat in four pieces; the second of each is whether the model is to learn to write it."""
    call = f'<tool_call>\n{{"name": "calc", "arguments": {{"expression": "{a}+{b}"}}}}\n</tool_call><|im_end|>'
    question = f"<|im_start|>system\nTools: calc <|im_end|>\n<|im_start|>user\nWhat is {a} plus {b}?<|im_end|>\n"
    answer = f"\n<|im_start|>user\n<tool_response>\n{a + b}\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    return [
        (question + "<|im_start|>assistant\n", False),
        (call, True),
        (answer, False),
        (f"The answer is {a + b}.<|im_end|>", True),
    ]


def pair(rng: random.Random) -> tuple[int, int]:
    return rng.randint(0, LARGEST), rng.randint(0, LARGEST)


def make_tokenizer(rng: random.Random) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE(unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    corpus = ["".join(text for text, _ in conversation(*pair(rng))) for _ in range(2000)]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(corpus, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def make_model(tokenizer: PreTrainedTokenizerFast) -> Qwen2ForCausalLM:
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=3,
        num_attention_heads=2,  # vLLM's attention kernel for the CPU wants heads of 32 or more
        num_key_value_heads=1,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    return Qwen2ForCausalLM(config)


def batch(tokenizer: PreTrainedTokenizerFast, rng: random.Random) -> tuple[torch.Tensor, torch.Tensor]:
    inputs, labels = [], []
    for _ in range(BATCH):
        ids: list[int] = []
        wanted: list[int] = []
        for text, learn in conversation(*pair(rng)):
            piece = tokenizer(text, add_special_tokens=False)["input_ids"]
            ids += piece
            wanted += piece if learn else [IGNORED] * len(piece)
        inputs.append(torch.tensor(ids))
        labels.append(torch.tensor(wanted))
    pad = torch.nn.utils.rnn.pad_sequence
    return pad(inputs, True, tokenizer.pad_token_id), pad(labels, True, IGNORED)


def warm_start(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, rng: random.Random, steps: int) -> None:
    """Supervised learning of the made-up chats: enough for tool calls, not enough for the right digits."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    start = time.monotonic()
    for step in range(1, steps + 1):
        inputs, labels = batch(tokenizer, rng)
        loss = model(input_ids=inputs, labels=labels).loss
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 100 == 0:
            print(
                f"warm start: step {step} of {steps}, loss {loss.item():.3f}, {time.monotonic() - start:.0f} s",
                flush=True,
            )


def rows(rng: random.Random, count: int) -> list[dict]:
    return [
        {
            "data_source": "tiny/add",
            "prompt": [{"role": "user", "content": f"What is {a} plus {b}?"}],
            "ability": "math",
            "agent_name": "tool_agent",
            "reward_model": {"style": "rule", "ground_truth": str(a + b)},
            "extra_info": {"split": "train", "index": index, "need_tools_kwargs": False},
        }
        for index, (a, b) in enumerate(pair(rng) for _ in range(count))
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=500, help="steps of the warm start (500 take about 25 s)")
    args = parser.parse_args()
    done = args.folder / "val.parquet"
    if done.exists():
        return
    args.folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(0)
    torch.manual_seed(0)
    # For so small a model a second thread mostly waits, and on a busy machine it waits by spinning.
    torch.set_num_threads(1)
    tokenizer = make_tokenizer(rng)
    tokenizer.save_pretrained(args.folder / "model")
    model = make_model(tokenizer)
    warm_start(model, tokenizer, rng, args.steps)
    model.to(torch.bfloat16).save_pretrained(args.folder / "model")
    data = rows(rng, 32)
    pd.DataFrame(data).to_parquet(args.folder / "train.parquet")
    pd.DataFrame(data[:8]).to_parquet(done)


if __name__ == "__main__":
    main()
