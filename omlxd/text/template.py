"""Makes prompt tokens off the loop: of chat messages by the model's template, or of plain text.

A chat template is a program that came with the model. The sandbox limits what it can reach, not
how long it runs. A thread can be stopped only where it asks: when it writes text, loops or calls
a macro. So each prompt is made in a daemon thread of its own. At the deadline the request leaves
the thread behind. The number of these threads is limited.
"""

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

import structlog

from omlxd.errors import BodyTooLarge, InvalidRequest, NoChatTemplate, TemplateFailed, TemplatesBusy
from omlxd.text.options import TextOptions
from omlxd.text.own_thread import OwnThread
from omlxd.text.protocol import Tokenizer

log = structlog.get_logger(__name__)

_T = TypeVar("_T")

_RETRY_AFTER = 5.0


class PromptMaker:
    """Makes prompts. For the event loop only; owns the threads that it starts."""

    def __init__(self, options: TextOptions) -> None:
        self._options = options
        self._places = asyncio.Semaphore(options.max_renders)
        self._jobs: set[OwnThread[Any]] = set()

    @property
    def left_behind(self) -> int:
        """Renders that still run after their deadline."""
        return sum(job.age >= self._options.render_deadline for job in self._jobs)

    async def chat_prompt(
        self,
        tokenizer: Tokenizer,
        messages: Sequence[Mapping[str, Any]],
        *,
        model: str,
        template_arguments: Mapping[str, Any] = MappingProxyType({}),
    ) -> list[int]:
        """Token ids of ``messages`` and the generation prompt.

        ``model``: the name in error messages. ``template_arguments`` come from the configuration,
        never from a client. The template writes the special tokens, so none are added. Raises
        ``NoChatTemplate``, ``InvalidRequest``, ``BodyTooLarge``, ``TemplateFailed``,
        ``ModelBroken`` or ``TemplatesBusy``.
        """
        if not tokenizer.has_chat_template:
            raise NoChatTemplate(model)
        if not messages:
            raise InvalidRequest("messages must hold at least one message.", param="messages")
        self._check_input(count_characters(messages), "messages")
        plain = plain_messages(messages)

        def make(left: threading.Event) -> list[int]:
            def check(characters: int) -> None:
                if left.is_set():
                    raise TemplateFailed("Nobody waits for this any more.", param="messages")
                self._check_rendered(characters)

            text = tokenizer.render(plain, template_arguments=template_arguments, check=check)
            check(len(text))
            return _encode(tokenizer, text, add_special_tokens=False, param="messages")

        return await self._in_thread(make, param="messages", what="chat template")

    async def completion_prompt(
        self, tokenizer: Tokenizer, prompt: str | Sequence[int], *, param: str = "prompt"
    ) -> list[int]:
        """Token ids of a plain prompt, with the special tokens at the start of the model's texts.

        A prompt of token ids is checked and taken as it is. Errors call the prompt ``param``.
        Raises ``InvalidRequest`` (also for an empty prompt), ``BodyTooLarge``, ``TemplateFailed``
        after the deadline, or ``TemplatesBusy``.
        """
        if not prompt:
            raise InvalidRequest(f"{param} must not be empty.", param=param)
        if not isinstance(prompt, str):
            return _known_tokens(tokenizer, prompt, param)
        self._check_input(len(prompt), param)

        def make(_: threading.Event) -> list[int]:
            return _encode(tokenizer, prompt, add_special_tokens=True, param=param)

        return await self._in_thread(make, param=param, what="tokenizer")

    def _check_input(self, characters: int, param: str) -> None:
        limit = self._options.max_input_characters
        if characters > limit:
            raise BodyTooLarge(
                f"{param} holds {characters} characters; this server takes {limit} "
                "(option text.max_input_characters).",
                characters=characters,
                limit=limit,
            )

    def _check_rendered(self, characters: int) -> None:
        limit = self._options.max_rendered_characters
        if characters > limit:
            raise TemplateFailed(
                f"The model's chat template made {characters} characters of these messages; "
                f"the limit is {limit} (option text.max_rendered_characters).",
                param="messages",
                characters=characters,
                limit=limit,
            )

    async def _in_thread(
        self, make: Callable[[threading.Event], _T], *, param: str, what: str
    ) -> _T:
        """``make``'s result or error; its event is set when no request waits for it any more.
        Waiting for a place does not count as its time."""
        deadline = self._options.render_deadline
        await self._take_place()
        left = threading.Event()
        job = OwnThread("render", lambda: make(left), self._ended)
        self._jobs.add(job)
        job.start()
        try:
            await asyncio.wait({job.result}, timeout=deadline)
            if job.result.done():
                return job.result.result()
        finally:
            left.set()
            job.result.cancel()
        log.warning("render_left_behind", deadline=deadline, left_behind=self.left_behind)
        raise TemplateFailed(
            f"The model's {what} took longer than {deadline:g} s for this request (option "
            "text.render_deadline).",
            param=param,
            deadline=deadline,
        )

    async def _take_place(self) -> None:
        if self.left_behind < self._options.max_renders:
            try:
                async with asyncio.timeout(self._options.render_deadline):
                    await self._places.acquire()
                return
            except TimeoutError:
                pass
        raise TemplatesBusy(
            f"All {self._options.max_renders} places for making prompts (option "
            f"text.max_renders) are taken, {self.left_behind} of them by chat templates that "
            "overran their deadline. Try again later.",
            retry_after=_RETRY_AFTER,
            left_behind=self.left_behind,
        )

    def _ended(self, job: OwnThread[Any]) -> None:
        self._jobs.discard(job)
        self._places.release()
        if job.age >= self._options.render_deadline:
            log.info("left_behind_render_ended", age=job.age, left_behind=self.left_behind)


def _encode(tokenizer: Tokenizer, text: str, *, add_special_tokens: bool, param: str) -> list[int]:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(
            f"{param} holds a lone surrogate (half of a UTF-16 pair), which is no character. "
            "Send whole characters.",
            param=param,
        ) from None
    tokens = tokenizer.encode(text, add_special_tokens=add_special_tokens)
    if not tokens:
        raise InvalidRequest(f"{param} is empty: it makes no tokens.", param=param)
    return tokens


def _known_tokens(tokenizer: Tokenizer, tokens: Sequence[int], param: str) -> list[int]:
    for position, token in enumerate(tokens):
        if not 0 <= token < tokenizer.vocab_size:
            digits = len(str(token))
            number = token if digits <= 20 else f"a number of {digits} digits"
            raise InvalidRequest(
                f"{param}[{position}] is {number}; this model's token ids are 0 to "
                f"{tokenizer.vocab_size - 1}.",
                param=f"{param}[{position}]",
            )
    return list(tokens)


_BETWEEN_PARTS = "\n"
"""Clients send blocks (a task, a file, an environment) as parts; their words must not join."""


def plain_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """``messages`` with string contents: text parts joined by a line break, null as "".

    Other fields stay as they are, in their order; null ones are left out. Raises
    ``InvalidRequest`` that names the field if content is something else.
    """
    return [_plain(message, f"messages[{i}]") for i, message in enumerate(messages)]


def count_characters(value: Any) -> int:
    """Characters of all strings in ``value``, keys included."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(count_characters(key) + count_characters(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return sum(count_characters(item) for item in value)
    return 0


def _plain(message: Mapping[str, Any], place: str) -> dict[str, Any]:
    plain = {key: value for key, value in message.items() if value is not None}
    plain["content"] = _text(message.get("content"), f"{place}.content")
    return plain


def _text(content: Any, place: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list | tuple):
        return _BETWEEN_PARTS.join(_part(p, f"{place}[{i}]") for i, p in enumerate(content))
    raise InvalidRequest(f"{place} must be a string, a list of text parts, or null.", param=place)


def _part(part: Any, place: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind != "text":
        raise InvalidRequest(
            f"{place} is of type {kind!r}; only parts of type 'text' are supported.", param=place
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise InvalidRequest(f"{place}.text must be a string.", param=f"{place}.text")
    return text
