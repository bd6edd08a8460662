"""Models and fits as lines for a person. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from omlxd.cli.draw import duration, size, table
from omlxd.printable import printable

_VERDICTS = {
    "now": "yes, now",
    "after_evictions": "once models leave",
    "not_now": "not now",
    "never": "never",
}


def render_models(models: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line a model; the broken and the failed ones again below, with what is wrong."""
    if not models:
        return ["No models. `omlxd models pull ORG/NAME` gets one."]
    head = ("MODEL", "STATE", ">SIZE", ">CONTEXT", "PINNED", "ALIASES")
    rows = [
        (
            model["id"],
            _state(model),
            size(model["weights_bytes"]),
            _number(model["context_length"]),
            "yes" if model["pinned"] else "",
            ", ".join(model["aliases"]),
        )
        for model in models
    ]
    problems = [line for model in models if model["problem"] for line in _problem(model)]
    return [*table(head, rows), *([""] if problems else []), *problems]


def _state(model: Mapping[str, Any]) -> str:
    progress = model.get("progress")
    return str(model["state"]) if progress is None else f"{model['state']} {progress:.0%}"


def _problem(model: Mapping[str, Any]) -> list[str]:
    problem = model["problem"]
    file, message = problem["file"], str(problem["message"])
    where = f"{file} " if file and file not in message else ""
    again = problem["retry_in"]
    later = f" (tried again in {duration(again)} at the earliest)" if again else ""
    return [printable(f"  ! {model['id']}: {where}{message}{later}")]


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}".replace(",", " ")


def render_fit(fit: Mapping[str, Any]) -> list[str]:
    """What it would take, and what each tier of the guard says to it."""
    requests = "1 request" if fit["concurrency"] == 1 else f"{fit['concurrency']} requests"
    weights = "in memory" if fit["loaded"] else "measured" if fit["weights_measured"] else "files"
    lines = [
        f"{fit['id']}  {requests} of {_number(fit['context'])} tokens",
        "",
        f"  weights       {size(fit['weights_bytes']):>9}  ({weights})",
    ]
    if fit["unknown"] is None:
        lines += [
            f"  KV cache      {size(fit['kv_bytes']):>9}",
            f"  prefill peak  {size(fit['prefill_bytes']):>9}",
            f"  total         {size(fit['total_bytes']):>9}",
        ]
    else:
        lines.append(f"  KV cache and prefill are not known: {fit['unknown']}.")
    if not fit["loaded"] and fit["needed_bytes"] != fit["total_bytes"]:
        lines.append(f"  to load it    {size(fit['needed_bytes']):>9}  (room for a first prompt)")
    tiers: Mapping[str, Mapping[str, Any]] = fit["tiers"]
    if not tiers:
        return [*lines, "", "  Nothing is known of this machine's memory yet."]
    head = ("TIER", "FITS", ">CEILING", "BOUND BY", "")
    rows = [_tier(name, found, name == fit["tier"]) for name, found in tiers.items()]
    return [*lines, "", *table(head, rows)]


def _tier(name: str, found: Mapping[str, Any], in_force: bool) -> tuple[str, ...]:
    what = found["remedy"] or ""
    if found["evict"]:
        what = f"unload {', '.join(found['evict'])}"
    return (
        f"{name} *" if in_force else name,
        _VERDICTS.get(found["verdict"], found["verdict"]),
        size(found["ceiling_bytes"]),
        found["binding"].replace("_", " "),
        what,
    )
