"""Keeps the machine awake while requests or loads are under way, and only then."""

from collections.abc import Callable

from omlxd.daemon.surroundings import Wakefulness


class AwakeWhile:
    """Asked after each change; holds once however much is under way."""

    def __init__(self, awake: Wakefulness | None, working: Callable[[], bool]) -> None:
        self._awake = awake
        self._working = working
        self._held = False

    def look(self) -> None:
        if self._awake is None:
            return
        working = self._working()
        if working and not self._held:
            self._awake.hold()
        elif self._held and not working:
            self._awake.release()
        self._held = working

    def close(self) -> None:
        if self._awake is not None:
            self._awake.close()
