"""Room for open files: a login on macOS gives a process 256, fewer than connections may be open."""

import resource

SPARE = 512
"""For models, caches, logs and what libraries open."""


def make_room(connections: int) -> int:
    """Raise the soft limit for ``connections`` and the rest, as far as the hard one allows; the
    limit in force. Never lowers it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    infinite = resource.RLIM_INFINITY
    wanted = connections + SPARE
    if hard != infinite:
        wanted = min(wanted, hard)
    if soft == infinite or soft >= wanted:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):  # macOS has a third limit, which it does not tell here
        return soft
    return wanted
