"""Options of the text side: how much may be rendered, and how long a request waits for it."""

from dataclasses import dataclass

from omlxd.options import Seconds, option


@dataclass(frozen=True, slots=True)
class TextOptions:
    render_deadline: Seconds = option(
        20.0,
        "Longest wait for a chat template to render and for its text to become tokens; the "
        "request fails beyond it.",
        above=0,
    )
    max_renders: int = option(
        4,
        "Prompts made at the same time. A render that overran its deadline holds its place until "
        "it next writes text or ends; with all places held so, requests get 503.",
        low=1,
    )
    max_input_characters: int = option(
        4_000_000, "Most characters in the messages or the prompt of one request.", low=1
    )
    max_rendered_characters: int = option(
        8_000_000, "Most characters a chat template may make of one request.", low=1
    )
