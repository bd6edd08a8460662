"""Finds the model of a name: exact, then by alias, then in any case, then without ``org/``."""

import difflib
from collections.abc import Callable, Collection, Mapping, Sequence

from omlxd.errors import AmbiguousModel, ModelNotFound

NEAREST = 3


Aliases = Mapping[str, Collection[str]]
"""The ids of each alias."""
Rule = Callable[[str, set[str], Aliases], set[str]]
"""Gives the ids that a name can mean."""


def find(name: str, ids: Collection[str], aliases: Aliases) -> str:
    """The id that ``name`` means.

    The first rule that matches anything decides. Raises AmbiguousModel when it matches
    several, ModelNotFound with the nearest names when no rule matches.
    """
    found = match(name, ids, aliases)
    if found is None:
        raise ModelNotFound(name, _nearest(name, {*ids, *aliases}))
    return found


def match(
    name: str, ids: Collection[str], aliases: Aliases, rules: Sequence[Rule] | None = None
) -> str | None:
    """Like ``find``, by the given ``rules`` (None: all rules); None when no rule matches."""
    known = set(ids)
    for rule in ALL if rules is None else rules:
        matches = rule(name, known, aliases)
        if len(matches) > 1:
            raise AmbiguousModel(name, sorted(matches))
        if matches:
            return matches.pop()
    return None


def _by_id(name: str, ids: set[str], aliases: Aliases) -> set[str]:
    return {name} & ids


def _by_alias(name: str, ids: set[str], aliases: Aliases) -> set[str]:
    return set(aliases.get(name, ())) & ids


def _by_case(name: str, ids: set[str], aliases: Aliases) -> set[str]:
    folded = name.casefold()
    matches = {model for model in ids if model.casefold() == folded}
    for alias, models in aliases.items():
        if alias.casefold() == folded:
            matches |= set(models) & ids
    return matches


def _by_last_part(name: str, ids: set[str], aliases: Aliases) -> set[str]:
    """``name`` may have no organisation, or have one while the model on disk has none."""
    last = _last_part(name).casefold()
    if "/" in name:
        return {model for model in ids if "/" not in model and model.casefold() == last}
    return {model for model in ids if _last_part(model).casefold() == last}


EXACT: Sequence[Rule] = (_by_id,)
CLOSE: Sequence[Rule] = (_by_alias, _by_case)
DISTANT: Sequence[Rule] = (_by_last_part,)
ALL: Sequence[Rule] = (*EXACT, *CLOSE, *DISTANT)


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
