"""The guard as others may look at it and change it: one object for API and status."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from omlxd.enforcer.enforcer import Enforcer, TickReport
from omlxd.enforcer.record import Entry
from omlxd.enforcer.settings import GuardSettings, PolicyInForce
from omlxd.errors import StateUnwritable

TICK_LIMIT = 3.0
"""Seconds a change waits for the tick that carries it out; the change itself is in force."""


class GuardControl:
    """Lives on the event loop; everything but ``change`` and ``follow`` answers from memory."""

    def __init__(self, enforcer: Enforcer, settings: GuardSettings) -> None:
        self._enforcer = enforcer
        self._settings = settings
        self._changing = asyncio.Lock()

    @property
    def in_force(self) -> PolicyInForce:
        return self._settings.in_force

    @property
    def running(self) -> bool:
        return self._enforcer.running

    @property
    def latest(self) -> Entry | None:
        return self._enforcer.latest

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The last decisions, oldest first."""
        return self._enforcer.record.entries

    @property
    def report(self) -> TickReport | None:
        return self._enforcer.report

    @property
    def failures(self) -> int:
        return self._enforcer.failures

    @property
    def interval(self) -> float:
        return self._enforcer.interval

    @property
    def now(self) -> float:
        return self._enforcer.now

    def follow(self) -> AsyncGenerator[Entry]:
        """The last decisions, then each new one, until the guard ends."""
        return self._enforcer.record.follow(replay=True)

    async def change(self, body: Mapping[str, Any]) -> None:
        """Set keys of the policy, and wait for the tick that follows, within a limit.

        Raises InvalidRequest, SettingLocked, and StateUnwritable when it would not survive a
        restart; then nothing has changed.
        """
        # Shielded: what was asked for is done whole, whether or not the asker stays.
        await asyncio.shield(asyncio.create_task(self._set(body)))
        await self._enforcer.look_now(TICK_LIMIT)

    async def _set(self, body: Mapping[str, Any]) -> None:
        async with self._changing:
            try:
                # In a thread: it waits for the disk.
                await asyncio.to_thread(self._settings.change, body)
            except OSError as error:
                raise StateUnwritable(
                    f"The change was not made: it cannot be saved ({error.strerror or error})."
                ) from error
