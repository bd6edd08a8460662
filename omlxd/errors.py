"""Every error the project raises on purpose: one tree; each has details and a stable code.

OmlxdError
├── RequestError                 the client's request cannot be served as it stands
│   ├── InvalidRequest           a field is wrong (``param`` names it)
│   │   ├── UnsupportedParameter
│   │   ├── ContextLengthExceeded
│   │   ├── NoChatTemplate
│   │   ├── SettingLocked        a flag or an environment variable fixes it
│   │   └── TemplateFailed
│   ├── ContextTooLargeForMemory can never fit on this machine
│   ├── Unauthorized, Forbidden, NotFound, ModelNotFound, AmbiguousModel
│   └── BodyTooLarge, RequestTooSlow, UnsupportedMediaType, MethodNotAllowed
├── Unavailable                  valid, but not possible now (``retry_after`` in seconds)
│   ├── Starting, ShuttingDown, QueueFull, TemplatesBusy, RequestTimeout
│   ├── MemoryPressure, MemoryPressureAborted
│   └── ModelUnloading, ModelAway, ModelLoadCancelled
├── ModelTooLarge, InsufficientMemory
├── ModelBroken, ModelLoadFailed, GenerationFailed, EngineDied
└── ConfigError, PortTaken, AlreadyRunning, StateUnreadable, StateUnwritable, ServiceFailed
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self


class OmlxdError(Exception):
    """Base of the tree. ``details`` are numbers and names that a client may read."""

    code: ClassVar[str] = "internal_error"
    param: str | None = None
    retry_after: float | None = None
    """Seconds after which a retry makes sense; None when it never does."""

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details: Mapping[str, Any] = details

    def again(self, **changes: Any) -> Self:
        """A copy to raise again. It has no traceback, since that keeps local variables alive.

        ``changes``: attributes that differ, such as ``retry_after``.
        """
        copied = copy.copy(self)
        copied.__dict__.update(changes)
        if "message" in changes:
            copied.args = (changes["message"],)
        return copied

    def __reduce__(self) -> tuple[Any, ...]:
        # Not by the constructor: the subclasses' constructors take other arguments.
        return _rebuilt, (type(self), self.args, dict(self.__dict__))


def _rebuilt(
    kind: type[OmlxdError], args: tuple[Any, ...], attributes: dict[str, Any]
) -> OmlxdError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


class RequestError(OmlxdError):
    code = "invalid_request"


class InvalidRequest(RequestError):
    code = "invalid_value"

    def __init__(self, message: str, *, param: str | None = None, **details: Any) -> None:
        super().__init__(message, **details)
        self.param = param


class UnsupportedParameter(InvalidRequest):
    code = "unsupported_parameter"


class ContextLengthExceeded(InvalidRequest):
    code = "context_length_exceeded"

    def __init__(
        self, *, prompt_tokens: int, context_length: int, param: str, which: str = "The prompt"
    ) -> None:
        super().__init__(
            f"{which} has {prompt_tokens} tokens; this model's context is {context_length} "
            "tokens, and at least one must be left for the answer. Shorten the prompt.",
            param=param,
            prompt_tokens=prompt_tokens,
            context_length=context_length,
        )


class NoChatTemplate(InvalidRequest):
    code = "no_chat_template"

    def __init__(self, model: str) -> None:
        super().__init__(
            f"Model '{model}' has no chat template (neither in tokenizer_config.json nor "
            "chat_template.jinja), so it cannot take chat messages. Use /v1/completions.",
            param="messages",
        )


class SettingLocked(InvalidRequest):
    code = "setting_locked"


class TemplateFailed(InvalidRequest):
    code = "chat_template_failed"


class ContextTooLargeForMemory(RequestError):
    code = "context_too_large_for_memory"


class Unauthorized(RequestError):
    code = "invalid_api_key"


class Forbidden(RequestError):
    code = "forbidden"


class NotFound(RequestError):
    code = "not_found"


class ModelNotFound(RequestError):
    code = "model_not_found"
    param = "model"

    def __init__(
        self, model: str, nearest: Sequence[str] = (), *, by_default: bool = False
    ) -> None:
        """``by_default``: the request named no model."""
        what = "The request names no model, and the default model" if by_default else "The model"
        hint = f" Did you mean {', '.join(nearest)}?" if nearest else ""
        super().__init__(
            f"{what} '{model}' does not exist here.{hint} GET /v1/models lists the models.",
            nearest=list(nearest),
        )


class AmbiguousModel(RequestError):
    code = "ambiguous_model"
    param = "model"

    def __init__(self, model: str, candidates: Sequence[str]) -> None:
        super().__init__(
            f"The name '{model}' fits several models: {', '.join(candidates)}. "
            "Use one of these names.",
            candidates=list(candidates),
        )


class BodyTooLarge(RequestError):
    code = "body_too_large"


class RequestTooSlow(RequestError):
    """The client began a request and did not send all of it in time."""

    code = "request_too_slow"


class UnsupportedMediaType(RequestError):
    code = "unsupported_media_type"


class MethodNotAllowed(RequestError):
    code = "method_not_allowed"


class Unavailable(OmlxdError):
    code = "unavailable"

    def __init__(self, message: str, *, retry_after: float | None = 1.0, **details: Any) -> None:
        super().__init__(message, **details)
        self.retry_after = retry_after


class Starting(Unavailable):
    code = "starting"


class ShuttingDown(Unavailable):
    code = "shutting_down"


class QueueFull(Unavailable):
    code = "queue_full"


class TemplatesBusy(Unavailable):
    code = "templates_busy"


class RequestTimeout(Unavailable):
    code = "request_timeout"


class MemoryPressure(Unavailable):
    code = "memory_pressure"


class MemoryPressureAborted(Unavailable):
    code = "memory_pressure_aborted"


class ModelUnloading(Unavailable):
    code = "model_unloading"


class ModelAway(Unavailable):
    """Its folder has disappeared since the last scan, and may come back."""

    code = "model_away"


class ModelLoadCancelled(Unavailable):
    code = "model_load_cancelled"


class ModelTooLarge(OmlxdError):
    code = "model_too_large"


class InsufficientMemory(OmlxdError):
    code = "insufficient_memory"

    def __init__(self, message: str, *, retry_after: float | None, **details: Any) -> None:
        super().__init__(message, **details)
        self.retry_after = retry_after


class ModelBroken(OmlxdError):
    """The files on disk cannot be served: truncated, a git-LFS pointer, no weights."""

    code = "model_broken"
    param = "model"


class ModelLoadFailed(OmlxdError):
    code = "model_load_failed"
    param = "model"

    def __init__(self, message: str, *, retry_after: float | None = None, **details: Any) -> None:
        super().__init__(message, **details)
        self.retry_after = retry_after


class GenerationFailed(OmlxdError):
    """A step raised; only the requests in it fail."""

    code = "generation_failed"


class EngineDied(OmlxdError):
    """The device thread ended; the daemon stops and is restarted."""

    code = "engine_died"


class ConfigError(OmlxdError):
    """All mistakes of a configuration at once, one line each."""

    code = "config_error"

    def __init__(self, mistakes: Sequence[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = tuple(mistakes)


class PortTaken(OmlxdError):
    code = "port_taken"


class AlreadyRunning(OmlxdError):
    code = "already_running"


class StateUnreadable(OmlxdError):
    """A state file is damaged; it is moved aside, never overwritten."""

    code = "state_unreadable"


class ServiceFailed(OmlxdError):
    """The operating system's service could not be installed, started or stopped."""

    code = "service_failed"


class StateUnwritable(OmlxdError):
    """Data for the next start could not be saved: a full disk, a folder without access."""

    code = "state_unwritable"
