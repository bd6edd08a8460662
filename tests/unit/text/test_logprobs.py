from omlxd.text.detokenize import TokenPiece, token_piece
from tests.support.tokenizers import EOS, PieceTokenizer


def test_a_part_of_a_character_shows_its_real_bytes() -> None:
    tokenizer = PieceTokenizer()
    half, whole = tokenizer.tokens([b"a\xe2\x82", " ř".encode()])
    assert token_piece(tokenizer, half) == TokenPiece("a\\xe2\\x82", b"a\xe2\x82")
    assert token_piece(tokenizer, whole) == TokenPiece(" ř", b" \xc5\x99")


def test_a_special_token_shows_its_name() -> None:
    assert token_piece(PieceTokenizer(), EOS) == TokenPiece("</s>", b"</s>")
