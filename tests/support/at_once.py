"""Runs the work of a thread at once, for tests in which the time does not pass."""

from typing import TypeVar

from omlxd.text.own_thread import OwnThread

T = TypeVar("T")


class AtOnce(OwnThread[T]):
    def start(self) -> None:
        """The result is available at the loop's next turn."""
        self._run()
