"""Coding with tokenizers that only one thread may use at a time."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from omlxd.backend.mlx.coding import LockedCoding, coding_of


class SlowTokenizer:
    """A transformers tokenizer in Python: ``encode`` takes until ``done`` is set."""

    backend_tokenizer = None
    all_special_ids = (0,)

    def __init__(self, begun: threading.Event, done: threading.Event) -> None:
        self.begun, self.done = begun, done
        self.busy = False

    def __deepcopy__(self, _: Any) -> "SlowTokenizer":
        return SlowTokenizer(self.begun, self.done)

    def __len__(self) -> int:
        return 128

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        assert not self.busy
        self.busy = True
        self.begun.set()
        assert self.done.wait(60)
        self.busy = False
        return [ord(character) for character in text]

    def decode(self, tokens: list[int], **_: Any) -> str:
        assert not self.busy
        return "".join(map(chr, tokens))


def test_tokens_are_decoded_while_a_long_text_is_still_encoded() -> None:
    begun, done = threading.Event(), threading.Event()
    coding = coding_of(SlowTokenizer(begun, done))
    assert isinstance(coding, LockedCoding)
    with ThreadPoolExecutor(2) as pool:
        try:
            texts = [pool.submit(coding.encode, text, add_special_tokens=True) for text in "ab"]
            assert begun.wait(60)
            loop = ThreadPoolExecutor(1)
            decoded = loop.submit(coding.decode, [104, 105, 999], skip_special_tokens=True)
            assert decoded.result(60) == "hi"
            assert loop.submit(coding.token_bytes, 104).result(60) == b"h"
        finally:
            done.set()
        assert [text.result(60) for text in texts] == [[97], [98]]
    loop.shutdown()
