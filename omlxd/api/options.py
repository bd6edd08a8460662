"""Options of the HTTP API."""

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass

from omlxd.options import Bytes, Seconds, option
from omlxd.units import KiB, MiB

_HOST = re.compile(
    r"(?P<name>[a-z0-9._-]+|\[(?P<v6>[^]]*)\])(:(?P<port>[1-9][0-9]{0,4}))?", re.A | re.I
)
_ORIGIN = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<host>[^/]*)/?", re.A | re.I)
_OWN_PORT = {"http": "80", "https": "443"}


def check_hosts(hosts: Iterable[str]) -> None:
    """Raises ValueError for a host that cannot be in a Host header."""
    for host in hosts:
        if _host(host) is None:
            raise ValueError(
                f"{host!r} is not a host: write NAME or NAME:PORT, such as 'box.local' or "
                "'[fd00::1]:8484', each one in full"
            )


def check_origins(origins: Iterable[str]) -> None:
    """Raises ValueError for an impossible Origin, and for ``null``, which anyone can send."""
    for origin in origins:
        found = _ORIGIN.fullmatch(origin)
        host = None if found is None else _host(found["host"])
        if found is None or host is None:
            raise ValueError(
                f"{origin!r} is not an origin: write SCHEME://HOST or SCHEME://HOST:PORT, such as "
                "'http://localhost:3000', each one in full"
            )
        if host["port"] and host["port"] == _OWN_PORT.get(found["scheme"].lower()):
            raise ValueError(f"{origin!r}: leave out the port, as browsers do with the usual one")


def _host(text: str) -> re.Match[str] | None:
    """None if it is no host. Raises ValueError for an address that browsers write differently."""
    found = _HOST.fullmatch(text)
    if found is None or int(found["port"] or 1) > 65535:
        return None
    if found["v6"] is not None:
        try:
            address = ipaddress.IPv6Address(found["v6"])
        except ValueError:
            return None
        if found["v6"].lower() != (usual := _as_browsers_write(address)):
            raise ValueError(f"{text!r}: write the address as browsers do: [{usual}]")
    return found


def _as_browsers_write(address: ipaddress.IPv6Address) -> str:
    if (mapped := address.ipv4_mapped) is not None:
        return "::ffff:{:x}:{:x}".format(*divmod(int(mapped), 2**16))
    return ipaddress.IPv6Address(int(address)).compressed  # without a zone


@dataclass(frozen=True, slots=True)
class ApiOptions:
    allowed_hosts: tuple[str, ...] = option(
        (),
        "Further names by which clients may call this server (the Host header), for example "
        "'host.docker.internal'; with ':PORT' only on that port.",
        check=check_hosts,
    )
    allowed_origins: tuple[str, ...] = option(
        (),
        "Origins of web pages that may call this server, for example 'http://localhost:3000'; "
        "none by default (CORS off).",
        check=check_origins,
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
