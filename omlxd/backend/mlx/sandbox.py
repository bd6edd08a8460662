"""Bounds on what a chat template may make, beside jinja's sandbox, which bounds what it reaches."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

MOST_ITEMS: Final = 1_000_000
"""In a string or list that ``*`` repeats."""
MOST_BITS: Final = 10_000
"""Of a whole number that ``*`` and ``**`` make. One operation holds the interpreter until it is
done, and with it every other thread."""

Check = Callable[[int], None]
"""Called with the characters rendered so far, or 0; raises to end the render."""

_check: ContextVar[Check] = ContextVar("check", default=lambda _: None)


@contextmanager
def checked_by(check: Check) -> Iterator[None]:
    """Templates rendered inside ask ``check`` before they go on."""
    before = _check.set(check)
    try:
        yield
    finally:
        _check.reset(before)


@functools.cache
def bound_templates() -> None:
    """From now on transformers compiles chat templates with these bounds."""
    # Imported here: nothing needs it before the first tokenizer.
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
        def turn(self) -> None:
            """Read at each turn of a loop and each call of a macro, which need not write. No
            method: the sandbox takes thirty times as long for a call."""
            _check.get()(0)

        def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
            tree = super()._parse(source, name, filename)
            turning = [node.body for node in tree.find_all(nodes.For)]
            turning += [node.body for node in tree.find_all(nodes.Macro)]
            for body in turning:
                body.insert(0, nodes.ExprStmt(nodes.EnvironmentAttribute("turn"), lineno=1))
            return tree

        def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
            refuse_large(operator, left, right)
            return super().call_binop(context, operator, left, right)

    chat_template_utils.ImmutableSandboxedEnvironment = BoundedEnvironment


def refuse_large(operator: str, left: Any, right: Any) -> None:
    """Raises OverflowError where ``left operator right``, ``*`` or ``**``, would be too large."""
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
