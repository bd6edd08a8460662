"""The way of commands to the device thread."""

from queue import SimpleQueue

from omlxd.engine.messages import Command


class Inbox:
    """Filled on the event loop, emptied on the device thread."""

    def __init__(self) -> None:
        self._commands: SimpleQueue[Command] = SimpleQueue()
        self.coming = 0
        """How many requests are on their way here. Set on the event loop."""

    def put(self, command: Command) -> None:
        self._commands.put(command)

    def get(self, *, block: bool = True, timeout: float | None = None) -> Command:
        """Raises queue.Empty."""
        return self._commands.get(block, timeout)

    def empty(self) -> bool:
        return self._commands.empty()
