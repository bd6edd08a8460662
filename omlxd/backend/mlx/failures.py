"""What failures of the runtime say, and which nothing short of a new process cures."""

from omlxd.errors import EngineDied

_REFUSED_FOR_GOOD = "SubmissionsIgnored"
"""From kIOGPUCommandBufferCallbackErrorSubmissionsIgnored: after earlier faults the GPU driver
takes nothing more from this process."""


_LONGEST_REASON = 500
"""Characters; of missing tensors the runtime names each."""


def reason_of(error: Exception) -> str:
    """One line without a full stop, for a sentence to take in."""
    said = " ".join(str(error).split())[:_LONGEST_REASON].rstrip(".")
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def raise_if_device_lost(error: BaseException) -> None:
    """Raises EngineDied when ``error`` says that every later step will fail too."""
    if _REFUSED_FOR_GOOD in str(error):
        raise EngineDied(f"The GPU refuses all further work from this process: {error}")
