"""How one token is shown beside its log probability."""

from dataclasses import dataclass

from omlxd.text.protocol import Tokenizer


@dataclass(frozen=True, slots=True)
class TokenPiece:
    """``data`` are the token's real bytes; ``text`` spells those of a part of a character."""

    text: str
    data: bytes


def token_piece(tokenizer: Tokenizer, token: int) -> TokenPiece:
    """One token by itself: perhaps half a character, and a special token by its name."""
    data = tokenizer.token_bytes(token)
    return TokenPiece(data.decode("utf-8", errors="backslashreplace"), data)
