"""Checks one setting of a model that came over the API, against its declaration."""

from typing import Any, Final

from omlxd.errors import InvalidRequest
from omlxd.model_settings.options import ModelSettings
from omlxd.options import BadValue, Declaration, declarations, read_value

LARGEST_NUMBER: Final = 2**53
"""Above it the numbers of JSON are no longer exact."""
_DECLARED: Final = {"default": Declaration(bool), **declarations(ModelSettings)}


def check_change(key: str, value: Any) -> Any:
    """``value`` as ``ModelSettings`` holds it; None resets. Raises InvalidRequest for ``key``."""
    if key not in _DECLARED:
        raise InvalidRequest(
            f"There is no setting '{key}'. Known are default, "
            f"{', '.join(sorted(_DECLARED.keys() - {'default'}))}.",
            param=key,
        )
    if value is None:
        return None
    try:
        result = read_value(value, _DECLARED[key])
        if isinstance(result, int | float) and not -LARGEST_NUMBER <= result <= LARGEST_NUMBER:
            raise BadValue("must be a smaller number")
    except BadValue as bad:
        raise InvalidRequest(f"'{key}' {bad.rule}.", param=key) from None
    return tuple(dict.fromkeys(result)) if isinstance(result, tuple) else result
