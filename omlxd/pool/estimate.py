"""How much memory a model needs: its weights, and its KV and prefill for so many tokens."""

from dataclasses import dataclass

from omlxd.backend.shapes.read import UnknownShape, model_shape
from omlxd.library.catalog import CatalogModel
from omlxd.policy.admission import LoadNeed
from omlxd.policy.footprint import Footprint, Plan, footprint
from omlxd.pool.measured_sizes import MeasuredSizes

FIRST_PREFILL = 2048
"""Tokens: the working headroom of a load is that of one such prompt."""
UNKNOWN_SHARE = 0.05
"""Of the weights: the headroom of a model whose shape is not understood."""


@dataclass(frozen=True, slots=True)
class WorkingMemory:
    """What a model takes beside its weights; ``footprint`` is None where ``unknown`` says why."""

    footprint: Footprint | None
    unknown: str | None = None


def working_memory(model: CatalogModel, context: int, sequences: int = 1) -> WorkingMemory:
    """KV of ``sequences`` of ``context`` tokens each, and the peak of a prefill."""
    shape = model_shape(model.config, model.element_bytes)
    if isinstance(shape, UnknownShape):
        return WorkingMemory(None, shape.reason)
    return WorkingMemory(footprint(shape, Plan(context=context, sequences=sequences)))


def load_need(model: CatalogModel, sizes: MeasuredSizes) -> LoadNeed:
    """What loading takes: weights, and the headroom to serve a first short request."""
    weights = sizes.expected(model)
    context = min(FIRST_PREFILL, model.context_length or FIRST_PREFILL)
    first = working_memory(model, context).footprint
    headroom = int(weights * UNKNOWN_SHARE) if first is None else first.bytes
    return LoadNeed(model.id, weights_bytes=weights, headroom_bytes=headroom)
