"""Which failures of MLX nothing short of a new process cures."""

from omlxd.errors import EngineDied

_REFUSED_FOR_GOOD = "SubmissionsIgnored"
"""From kIOGPUCommandBufferCallbackErrorSubmissionsIgnored: after earlier faults the GPU driver
takes nothing more from this process."""


def raise_if_device_lost(error: BaseException) -> None:
    """Raises EngineDied when ``error`` says that every later step will fail too."""
    if _REFUSED_FOR_GOOD in str(error):
        raise EngineDied(f"The GPU refuses all further work from this process: {error}")
