"""May this model be loaded now? Puts the question to the policy, with what is known now."""

from collections.abc import Callable, Sequence

from omlxd.policy.admission import Admit, LoadNeed, LoadPlan, LoadScene, plan_load
from omlxd.pool.protocol import DeviceEngine, MemoryView
from omlxd.pool.record import ModelRecord
from omlxd.pool.sizes import SizeBook
from omlxd.pool.view import view_for_load

Admission = Callable[[ModelRecord, Sequence[ModelRecord], int], LoadPlan]
"""(the model, all models, bytes promised and not allocated yet) -> what to do."""


class MemoryAdmission:
    def __init__(
        self, engine: DeviceEngine, memory: Callable[[], MemoryView | None], sizes: SizeBook
    ) -> None:
        self._engine = engine
        self._memory = memory
        self._sizes = sizes

    def __call__(
        self, record: ModelRecord, records: Sequence[ModelRecord], promised: int
    ) -> LoadPlan:
        """Where nothing is known of the machine's memory every load is admitted."""
        need = LoadNeed(
            model_id=record.id,
            weights_bytes=self._sizes.expected(record.model),
            headroom_bytes=self._sizes.headroom(record.model),
        )
        memory = self._memory()
        if memory is None:
            return Admit(need.bytes)
        views = (view_for_load(other, self._engine.view(other.id)) for other in records)
        scene = LoadScene(
            models=tuple(seen for seen in views if seen is not None),
            usage=memory.usage,
            reserved=promised,
            evicted=record.evicted_for,
            paused=memory.paused,
            enforce=memory.enforce,
        )
        return plan_load(need, scene, memory.ceilings)
