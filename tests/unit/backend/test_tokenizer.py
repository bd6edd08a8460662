"""Parts of a model folder that are refused before a library reads its tokenizer."""

from pathlib import Path

import pytest

from omlxd.backend.mlx.tokenizer import read_tokenizer_files
from omlxd.errors import ModelBroken

DEEP = '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}"


@pytest.mark.parametrize("content", [DEEP, "{", "[]", b"\xff"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: str | bytes) -> None:
    file = tmp_path / "tokenizer_config.json"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ModelBroken, match=r"tokenizer_config\.json") as broken:
        read_tokenizer_files(tmp_path)
    assert broken.value.details == {"file": str(file)}


@pytest.mark.parametrize("content", [DEEP, "{", "[]"])
def test_a_generation_config_that_cannot_be_read_is_left_out(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text('{"eos_token_id": [1, 2]}')
    (tmp_path / "generation_config.json").write_text(content)
    assert read_tokenizer_files(tmp_path).stop_tokens == {1, 2}
