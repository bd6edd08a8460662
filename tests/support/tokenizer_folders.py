"""Model folders that hold only a real tokenizer, one for each kind."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

CORPUS = [
    "The quick brown fox jumps over the lazy dog. She said: hello, world!",
    "Příliš žluťoučký kůň úpěl ďábelské ódy.",
    "你好，世界。今天天气很好。 こんにちは世界",
    "def f(x):\n    return x + 1\n\n",
]
SPECIAL = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' "
    "+ message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_level() -> Tokenizer:
    """Byte-level BPE, like GPT-2, Llama 3 and Qwen."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=SPECIAL,
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("<tool_call>", normalized=False)])
    return tokenizer


def sentencepiece(*, strip: bool = True) -> Tokenizer:
    """BPE of sentencepiece with byte fallback, like Llama 2 (``strip``) and Gemma."""
    letters = sorted(set("".join(CORPUS[:2])) - {" "})
    pieces = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *letters]
    merges = [("▁", "h"), ("l", "o"), ("▁", "w"), ("▁", "▁"), ("h", "e")]
    pieces += [a + b for a, b in merges if a + b not in pieces]
    tokenizer = Tokenizer(
        models.BPE(
            {piece: i for i, piece in enumerate(pieces)},
            merges,
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    spaces = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = (
        normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if strip else spaces
    )
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if strip:
        steps.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def metaspace() -> Tokenizer:
    """Unigram with the decoder of older sentencepiece conversions."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=200, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def beginning_with_bos(tokenizer: Tokenizer) -> Tokenizer:
    bos = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", bos)]
    )
    return tokenizer


def write(folder: Path, tokenizer: Tokenizer, **files: Mapping[str, Any]) -> str:
    """The folder's path. ``config``, ``generation_config`` and ``tokenizer_config`` are added to
    the minimal content of those files."""
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    contents: dict[str, Mapping[str, Any]] = {
        "config": {"model_type": "llama"} | dict(files.get("config", {})),
        "tokenizer_config": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<s>",
            "eos_token": "</s>",
            "unk_token": "<unk>",
            "clean_up_tokenization_spaces": True,
        }
        | dict(files.get("tokenizer_config", {})),
    }
    if "generation_config" in files:
        contents["generation_config"] = files["generation_config"]
    for name, content in contents.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return str(folder)
