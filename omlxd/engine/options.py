"""Options of the engine: how many requests run and wait, and how long one step may take."""

from dataclasses import dataclass

from omlxd.options import Seconds, option


@dataclass(frozen=True, slots=True)
class EngineOptions:
    max_concurrent: int = option(
        8, "Requests of one model that run in its batch at the same time.", low=1, high=256
    )
    max_waiting: int = option(
        64,
        "Requests of one model that may wait for a place in its batch; more are refused with 503.",
        low=0,
        high=10_000,
    )
    max_prefills: int = option(
        8, "Requests of one model whose prompts are prefilled together.", low=1, high=256
    )
    prefill_chunk: int = option(
        2048, "Prompt tokens that one step takes at most, over all its requests.", low=16
    )
    decode_stall: Seconds = option(
        0.5,
        "While any request decodes, prefill chunks are sized so that none waits longer than "
        "this for its next token.",
        above=0.0,
    )
    longest_step: Seconds = option(
        1.0,
        "Prefill chunks are sized so that a step takes no longer than this even when nothing "
        "decodes, or half as long again where that ends the prompts; cancelled requests leave "
        "between steps.",
        above=0.0,
    )
    load_share: float = option(
        0.25,
        "Share of the device's time that a load takes while requests run; alone it takes all.",
        above=0.0,
        high=0.9,
    )
