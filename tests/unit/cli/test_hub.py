"""The files that a pull needs, and the valid names of repositories."""

import pytest

from omlxd.cli.hub import HubFile, NotPullable, check_repository, check_revision, wanted


def names(*files: str) -> list[str]:
    return [file.name for file in wanted(HubFile(name, n) for n, name in enumerate(files))]


@pytest.mark.parametrize("name", ["org/name", "mlx-community/Qwen3-4B-4bit", "a/b", "o_1/n.2-x"])
def test_org_and_name_is_a_repository(name: str) -> None:
    assert check_repository(name) == name


@pytest.mark.parametrize(
    "name",
    [
        *("name", "a/b/c", "https://hub/a/b", "/a/b", "../b", "a/..", "a/b..c", "~/b", "a/b\n"),
        *("a\\b/c", "", "/", "a/", "-a/b", ".a/b", "a--b/c", "a/b c", "a/ü", "a/" + "b" * 97),
    ],
)
def test_anything_else_is_not(name: str) -> None:
    with pytest.raises(NotPullable, match="ORG/NAME"):
        check_repository(name)


@pytest.mark.parametrize("name", ["main", "refs/pr/1", "v1.0", "c0ffee"])
def test_revisions(name: str) -> None:
    assert check_revision(name) == name


@pytest.mark.parametrize("name", ["", "../x", "/x", "a b", "-x", "a\n"])
def test_what_is_no_revision(name: str) -> None:
    with pytest.raises(NotPullable):
        check_revision(name)


def test_code_pickles_other_formats_and_folders_stay_where_they_are() -> None:
    found = names(
        *("config.json", "model.safetensors", "model.py", "pytorch_model.bin", "x.pt", "m.gguf"),
        *("onnx/model.onnx", "../config.json", "/etc/model.safetensors", ".env", "run.sh"),
        *("original/model.safetensors", "consolidated.safetensors", "training_args.bin"),
    )
    assert found == ["config.json", "model.safetensors"]


def test_everything_that_a_tokenizer_needs_comes_along() -> None:
    texts = [
        *("tokenizer.json", "tokenizer.model", "tiktoken.model", "merges.txt", "vocab.txt"),
        *("chat_template.jinja", "README.md", "LICENSE", "LICENSE.txt", "qwen.tiktoken"),
    ]
    assert set(texts) <= set(names(*texts, "config.json", "model.safetensors"))


def test_small_files_come_first() -> None:
    files = [HubFile("model.safetensors", 9), HubFile("config.json", 2), HubFile("a.json", 5)]
    assert [f.size for f in wanted(files)] == [2, 5, 9]


def test_a_repository_without_weights_or_config_is_no_model() -> None:
    with pytest.raises(NotPullable, match=r"\.bin, \.gguf"):
        names("config.json", "a.gguf", "pytorch_model.bin")
    with pytest.raises(NotPullable, match=r"config\.json"):
        names("model.safetensors", "adapter_config.json")
