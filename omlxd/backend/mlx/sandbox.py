"""Limits the time and memory of a chat template. Jinja's sandbox limits what it can access."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

MOST_ITEMS: Final = 1_000_000
"""Items of a string or list that ``*`` makes."""
MOST_BITS: Final = 10_000
"""Bits of a whole number that ``*`` or ``**`` makes. Such an operation holds the interpreter lock
until it is done, and no other thread runs."""

Check = Callable[[int], None]
"""Called with the number of characters rendered so far, or 0. It raises to end the rendering."""

_check: ContextVar[Check] = ContextVar("check", default=lambda _: None)


@contextmanager
def checked_by(check: Check) -> Iterator[None]:
    """Templates that are rendered inside this context call ``check`` repeatedly."""
    before = _check.set(check)
    try:
        yield
    finally:
        _check.reset(before)


@functools.cache
def bound_templates() -> None:
    """Make transformers compile chat templates with these limits from now on."""
    # Imported here, because nothing needs it before the first tokenizer.
    from jinja2 import Template, nodes
    from jinja2.runtime import Context
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from transformers.utils import chat_template_utils

    class BoundedTemplate(Template):
        def render(self, *args: Any, **kwargs: Any) -> str:
            check = _check.get()
            pieces, size = [], 0
            for piece in self.generate(*args, **kwargs):
                pieces.append(piece)
                size += len(piece)
                check(size)
            return "".join(pieces)

    class BoundedEnvironment(ImmutableSandboxedEnvironment):
        template_class = BoundedTemplate
        intercepted_binops = frozenset({"*", "**"})

        @property
        def iteration(self) -> None:
            """Read at each loop iteration and each macro call, because these may render nothing. A
            property, because a call takes thirty times as long in the sandbox."""
            _check.get()(0)

        def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
            tree = super()._parse(source, name, filename)
            bodies = [node.body for node in tree.find_all(nodes.For)]
            bodies += [node.body for node in tree.find_all(nodes.Macro)]
            for body in bodies:
                body.insert(0, nodes.ExprStmt(nodes.EnvironmentAttribute("iteration"), lineno=1))
            return tree

        def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
            refuse_large(operator, left, right)
            return super().call_binop(context, operator, left, right)

    chat_template_utils.ImmutableSandboxedEnvironment = BoundedEnvironment


def refuse_large(operator: str, left: Any, right: Any) -> None:
    """Raises OverflowError when ``left * right`` or ``left ** right`` would be too large."""
    match left, right:
        case int(), int():
            size = left.bit_length()
            bits = size * right if operator == "**" else size + right.bit_length()
            too_large = bits > MOST_BITS
        case (str() | bytes() | list() | tuple(), int()):
            too_large = len(left) * right > MOST_ITEMS
        case (int(), str() | bytes() | list() | tuple()):
            too_large = left * len(right) > MOST_ITEMS
        case _:
            too_large = False
    if too_large:
        raise OverflowError(f"the result of {operator} would be too large")
