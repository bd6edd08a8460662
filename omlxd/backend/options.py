"""Options of the runtime."""

from dataclasses import dataclass

from omlxd.options import Bytes, option


@dataclass(frozen=True, slots=True)
class BackendOptions:
    pool_limit: Bytes | None = option(
        None,
        "Freed memory that MLX may keep for reuse. None: 5 % of the machine's memory, at most "
        "2GB; without a GPU what MLX itself chooses.",
        low=0,
    )
    load_piece: Bytes = option(
        64 * 1024**2,
        "Weights read at a time while a model loads; running requests step in between.",
        low=1024**2,
    )
