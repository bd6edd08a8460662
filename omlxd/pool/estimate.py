"""How much memory a model needs: its weights, and its KV and prefill for so many tokens."""

from dataclasses import dataclass

from omlxd.backend.shapes.read import UnknownShape, model_shape
from omlxd.policy.admission import LoadNeed
from omlxd.policy.footprint import Footprint, Plan, footprint
from omlxd.pool.catalog import CatalogModel
from omlxd.pool.sizes import SizeBook

FIRST_PREFILL = 2048
"""Tokens: the working headroom of a load is that of one such prompt."""
UNKNOWN_SHARE = 0.05
"""Of the weights: the headroom of a model whose shape is not understood."""


@dataclass(frozen=True, slots=True)
class Beside:
    """What a model takes beside its weights; ``footprint`` is None where ``unknown`` says why."""

    footprint: Footprint | None
    unknown: str | None = None


def beside_weights(model: CatalogModel, context: int, sequences: int = 1) -> Beside:
    """KV of ``sequences`` of ``context`` tokens each, and the peak of a prefill."""
    shape = model_shape(model.config, model.element_bytes)
    if isinstance(shape, UnknownShape):
        return Beside(None, shape.reason)
    return Beside(footprint(shape, Plan(context=context, sequences=sequences)))


def load_need(model: CatalogModel, sizes: SizeBook) -> LoadNeed:
    """What loading takes: weights, and the headroom to serve a first short request."""
    weights = sizes.expected(model)
    context = min(FIRST_PREFILL, model.context_length or FIRST_PREFILL)
    first = beside_weights(model, context).footprint
    headroom = int(weights * UNKNOWN_SHARE) if first is None else first.bytes
    return LoadNeed(model.id, weights_bytes=weights, headroom_bytes=headroom)
