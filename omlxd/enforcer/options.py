"""Options of the memory guard in the configuration."""

from dataclasses import dataclass
from enum import Enum

from omlxd.options import Bytes, option
from omlxd.policy.tiers import GuardPolicy, Tier, mistakes


class WiredLimit(Enum):
    OFF = "off"
    AUTO = "auto"


@dataclass(frozen=True, slots=True)
class GuardOptions:
    """Raises ValueError for a combination that makes no sense."""

    enabled: bool = option(True, "Watch memory at all.")
    enforce: bool = option(
        True, "Act on what is decided; false only shows and logs what would be done."
    )
    tier: Tier = option(
        Tier.BALANCED,
        "How much of the machine the models may take: 'safe', 'balanced', 'aggressive', or "
        "'custom' with a ceiling of your own.",
    )
    custom_ceiling: Bytes | None = option(
        None, "Memory ceiling of the 'custom' tier; none: only the machine's own bounds.", above=0
    )
    soft_threshold: float | None = option(
        None,
        "Fraction of the ceiling at which idle models go and new requests wait; none: the tier's.",
        above=0,
        high=1,
    )
    hard_threshold: float | None = option(
        None,
        "Fraction of the ceiling at which even running requests may be ended; none: the tier's.",
        above=0,
        high=1,
    )
    wired_limit: WiredLimit | Bytes = option(
        WiredLimit.OFF,
        "Memory that the GPU driver may keep resident: 'off' leaves it alone, 'auto' follows "
        "iogpu.wired_limit_mb when that was raised, or a size. Wiring is a known cause of kernel "
        "panics, so it is off unless asked for.",
        above=0,
    )

    def __post_init__(self) -> None:
        wrong = mistakes(self.policy(), changed=("custom_ceiling_bytes",))
        if wrong:
            raise ValueError(" ".join(mistake.text for mistake in wrong))

    def policy(self) -> GuardPolicy:
        return GuardPolicy(
            enabled=self.enabled,
            enforce=self.enforce,
            tier=self.tier,
            custom_ceiling_bytes=self.custom_ceiling,
            soft_threshold=self.soft_threshold,
            hard_threshold=self.hard_threshold,
        )
