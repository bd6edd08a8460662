"""Memory that was promised and is not allocated yet, so that nothing is promised twice."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reservation:
    """Bytes promised to ``holder``, and how many of them are allocated by now."""

    holder: str
    promised: int
    allocated: int = 0

    @property
    def outstanding(self) -> int:
        return max(0, self.promised - self.allocated)


class Ledger:
    """One reservation a holder. What is allocated shows in the readings and counts there."""

    def __init__(self) -> None:
        self._reservations: dict[str, Reservation] = {}

    def reserve(self, holder: str, size: int) -> None:
        """``size`` bytes, in place of what the holder had."""
        self._reservations[holder] = Reservation(holder, size)

    def allocated(self, holder: str, size: int) -> None:
        """``size`` bytes of the promise are in use now. A holder without one is ignored."""
        held = self._reservations.get(holder)
        if held is not None:
            self._reservations[holder] = Reservation(holder, held.promised, size)

    def release(self, holder: str) -> None:
        self._reservations.pop(holder, None)

    def promised_to(self, holder: str) -> int:
        """Bytes promised to ``holder``, allocated or not."""
        held = self._reservations.get(holder)
        return 0 if held is None else held.promised

    def outstanding_of(self, holder: str) -> int:
        """Bytes promised to ``holder`` and not allocated yet."""
        held = self._reservations.get(holder)
        return 0 if held is None else held.outstanding

    def outstanding(self) -> int:
        """Bytes promised to all holders and not allocated yet."""
        return sum(held.outstanding for held in self._reservations.values())

    def holders(self) -> tuple[Reservation, ...]:
        return tuple(self._reservations.values())
