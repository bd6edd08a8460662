"""What a guard that acts would have done about a load, where it only watches."""

from typing import assert_never

import structlog

from omlxd.policy.admission import Admit, EvictFirst, Refuse, Wait
from omlxd.pool.failures import refused
from omlxd.pool.record import ModelRecord

log = structlog.get_logger(__name__)


def watched(record: ModelRecord, plan: Admit) -> str | None:
    """Logged, and in words; None where it would have admitted the load too."""
    match plan.instead_of:
        case None:
            return None
        case Refuse() as refuse:
            error = refused(record, refuse)
            log.warning("load_would_be_refused", model=record.id, code=error.code, **error.details)
            return f"a guard that acts would have refused it: {error.message}"
        case EvictFirst(model_ids=victims):
            log.warning("load_would_evict", model=record.id, victims=list(victims))
            return f"a guard that acts would have unloaded {', '.join(victims)} first"
        case Wait(reason=reason, drain=drain):
            log.warning("load_would_wait", model=record.id, reason=reason, drain=list(drain))
            return f"a guard that acts would have let it wait: {reason}"
        case _:
            assert_never(plan.instead_of)
