"""Which model a name means: exact, then alias, then any case, then without ``org/``."""

import difflib
from collections.abc import Callable, Collection, Mapping

from omlxd.errors import AmbiguousModel, ModelNotFound

NEAREST = 3


def find(name: str, ids: Collection[str], aliases: Mapping[str, Collection[str]]) -> str:
    """The id that ``name`` means. ``aliases`` gives the ids of each alias.

    The first rule that matches anything decides. Raises AmbiguousModel when it matches
    several, ModelNotFound with the nearest names when no rule matches.
    """
    if name in ids:
        return name
    known = set(ids)
    for rule in (_by_alias, _by_case, _by_last_part):
        matches = rule(name, known, aliases)
        if len(matches) > 1:
            raise AmbiguousModel(name, sorted(matches))
        if matches:
            return matches.pop()
    raise ModelNotFound(name, _nearest(name, known | set(aliases)))


def _by_alias(name: str, ids: set[str], aliases: Mapping[str, Collection[str]]) -> set[str]:
    return set(aliases.get(name, ())) & ids


def _by_case(name: str, ids: set[str], aliases: Mapping[str, Collection[str]]) -> set[str]:
    folded = name.casefold()
    matches = {model for model in ids if model.casefold() == folded}
    for alias, models in aliases.items():
        if alias.casefold() == folded:
            matches |= set(models) & ids
    return matches


def _by_last_part(name: str, ids: set[str], aliases: Mapping[str, Collection[str]]) -> set[str]:
    """``name`` may lack the organisation, or name one that this model is not filed under."""
    last = _last_part(name).casefold()
    if "/" in name:
        return {model for model in ids if "/" not in model and model.casefold() == last}
    return {model for model in ids if _last_part(model).casefold() == last}


def _last_part(name: str) -> str:
    return name.rpartition("/")[2]


def _nearest(name: str, known: set[str]) -> list[str]:
    by_fold: dict[str, str] = {}
    fold: Callable[[str], str] = str.casefold
    for candidate in sorted(known):
        by_fold.setdefault(fold(candidate), candidate)
        by_fold.setdefault(fold(_last_part(candidate)), candidate)
    close = difflib.get_close_matches(fold(name[:200]), by_fold, n=2 * NEAREST, cutoff=0.5)
    return list(dict.fromkeys(by_fold[match] for match in close))[:NEAREST]
