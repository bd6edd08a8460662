"""Options of the HTTP API."""

from dataclasses import dataclass

from omlxd.options import Bytes, Seconds, option
from omlxd.units import KiB, MiB


@dataclass(frozen=True, slots=True)
class ApiOptions:
    allowed_hosts: tuple[str, ...] = option(
        (),
        "Further names by which clients may call this server (the Host header), for example "
        "'host.docker.internal'; with ':PORT' only on that port.",
    )
    allowed_origins: tuple[str, ...] = option(
        (),
        "Origins of web pages that may call this server, for example 'http://localhost:3000'; "
        "none by default (CORS off).",
    )
    max_body: Bytes = option(
        8 * MiB, "Largest request body that is read, compressed or inflated.", low=KiB
    )
    max_depth: int = option(128, "How deeply the JSON of a request may be nested.", low=8, high=500)
    body_timeout: Seconds = option(
        120.0, "How long a client may take to send a request's body.", low=1
    )
    keep_alive_interval: Seconds = option(
        10.0, "Longest silence of a stream before a comment is sent.", low=0.5, high=60
    )
    hold_start: Seconds = option(
        5.0,
        "How long the start of a stream is held back, so that an early failure gets its own "
        "status; a load or a prefill that takes longer streams keep-alives meanwhile.",
        low=0,
        high=60,
    )
    send_timeout: Seconds = option(
        120.0, "How long a client may leave a stream unread before it counts as gone.", low=1
    )
    default_max_tokens: int | None = option(
        None,
        "Length of an answer when the request names none; unset: what is left of the context.",
        low=1,
    )
    max_prompts: int = option(
        16, "Most prompts in one /v1/completions request; each becomes a choice.", low=1, high=1024
    )
