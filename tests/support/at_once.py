"""Work that a thread of its own would do, done at once: for tests whose time stands still."""

from typing import TypeVar

from omlxd.text.own_thread import OwnThread

T = TypeVar("T")


class AtOnce(OwnThread[T]):
    def start(self) -> None:
        """The result is there at the loop's next turn."""
        self._run()
