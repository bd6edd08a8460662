"""Real tokenizers, read from folders as mlx-lm and transformers read them."""

import json
import random
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.utils import load_tokenizer as mlx_lm_tokenizer
from tokenizers import Tokenizer as RustTokenizer

from omlxd.backend.mlx.coding import LockedCoding
from omlxd.backend.mlx.tokenizer import MlxTokenizer, load_tokenizer
from omlxd.errors import ModelAway, ModelBroken, NoChatTemplate, TemplateFailed
from omlxd.text.detokenize import Detokenizer, token_piece
from omlxd.text.options import TextOptions
from omlxd.text.protocol import Tokenizer
from omlxd.text.stops import StopStrings
from omlxd.text.template import PromptMaker
from tests.support import tokenizer_folders as folders

SCRIPTS = "hello world  . Příliš ďábelské ódy, 你好世界 😀 👨‍👩‍👧\n\n    x <tool_call> , ok"
ASCII = "She said: hello, world  !  fox x"
KINDS: list[tuple[str, Callable[[], RustTokenizer], str, str]] = [
    ("byte-level", folders.byte_level, "bytes", SCRIPTS),
    ("llama", folders.sentencepiece, "bytes_less_space", SCRIPTS),
    ("gemma", lambda: folders.sentencepiece(strip=False), "bytes", SCRIPTS),
    ("metaspace", folders.metaspace, "context", ASCII),
]
HELLO = [{"role": "user", "content": "hello"}]

every_kind = pytest.mark.parametrize(
    ("build", "joining", "text"), [kind[1:] for kind in KINDS], ids=[kind[0] for kind in KINDS]
)


def render(tokenizer: Tokenizer, messages: Any = HELLO, **arguments: Any) -> str:
    return tokenizer.render(messages, template_arguments=arguments, check=lambda _: None)


def templated(folder: Path, template: str, **files: Any) -> MlxTokenizer:
    config = files.pop("tokenizer_config", {}) | {"chat_template": template}
    path = folders.write(folder, folders.byte_level(), tokenizer_config=config, **files)
    return load_tokenizer(path)


@every_kind
def test_text_streams_as_it_is_from_every_kind(
    tmp_path: Path, build: Callable[[], RustTokenizer], joining: str, text: str
) -> None:
    """T32: deltas joined equal the non-stream text, no U+FFFD."""
    tokenizer = load_tokenizer(folders.write(tmp_path, build()))
    assert tokenizer.joining == joining
    tokens = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(tokens, skip_special_tokens=True) == text
    detokenizer = Detokenizer(tokenizer)
    pieces = [*(detokenizer.push([token]) for token in tokens), detokenizer.finish()]
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


@every_kind
def test_any_tokens_stream_without_error_and_end_in_the_text_the_library_gives(
    tmp_path: Path, build: Callable[[], RustTokenizer], joining: str, text: str
) -> None:
    """T32: invalid bytes. The library shows all of a run of byte tokens with one bad byte as bad,
    so only what is not U+FFFD can be compared there."""
    tokenizer = load_tokenizer(folders.write(tmp_path, build()))
    ordinary = [id for id in range(tokenizer.vocab_size) if id not in tokenizer.special_tokens]
    chance = random.Random(1)
    for _ in range(100):
        tokens = chance.choices(ordinary, k=40)
        detokenizer = Detokenizer(tokenizer)
        sent = "".join([detokenizer.push([token]) for token in tokens])
        sent += detokenizer.finish()
        whole = tokenizer.decode(tokens, skip_special_tokens=True)
        if joining == "bytes" and build is folders.byte_level:
            assert whole in (sent, sent + "\ufffd")
        else:
            valid = [c for c in whole if c != "\ufffd"]
            shown = iter(c for c in sent if c != "\ufffd")
            assert all(c in shown for c in valid)


@every_kind
def test_stop_strings_are_cut_from_every_kind(
    tmp_path: Path, build: Callable[[], RustTokenizer], joining: str, text: str
) -> None:
    """T38."""
    tokenizer = load_tokenizer(folders.write(tmp_path, build()))
    stop = "said" if text is ASCII else "ódy, 你好世界 😀"
    detokenizer, stops, sent, matched = Detokenizer(tokenizer), StopStrings([stop]), "", None
    for token in tokenizer.encode(text, add_special_tokens=False):
        passed = stops.push(detokenizer.push([token]))
        sent, matched = sent + passed.text, passed.matched
        if matched:
            break
    assert (sent, matched) == (text.partition(stop)[0], stop)


def test_tokens_show_their_real_bytes(tmp_path: Path) -> None:
    for name, build in (("b", folders.byte_level), ("s", folders.sentencepiece)):
        tokenizer = load_tokenizer(folders.write(tmp_path / name, build()))
        tokens = tokenizer.encode("x 😀", add_special_tokens=False)
        joined = b"".join(token_piece(tokenizer, token).data for token in tokens)
        assert joined.removeprefix(b" ") == "x 😀".encode()
        (end,) = tokenizer.encode("</s>", add_special_tokens=False)
        assert token_piece(tokenizer, end).text == "</s>"
        assert tokenizer.token_bytes(10**6) == b""


@every_kind
def test_special_tokens_and_unknown_ids_have_no_text(
    tmp_path: Path, build: Callable[[], RustTokenizer], joining: str, text: str
) -> None:
    tokenizer = load_tokenizer(folders.write(tmp_path, build()))
    tokens = tokenizer.encode("x<|im_start|>", add_special_tokens=False)
    assert tokens[-1] in tokenizer.special_tokens
    assert Detokenizer(tokenizer).push([*tokens, 10**6]) == "x"


def test_spaces_before_punctuation_are_kept(tmp_path: Path) -> None:
    """The clean-up that tokenizer_config.json asks for would drop them."""
    tokenizer = load_tokenizer(folders.write(tmp_path, folders.metaspace()))
    tokens = tokenizer.encode("x , x", add_special_tokens=False)
    assert tokenizer.decode(tokens, skip_special_tokens=True) == "x , x"


def test_stop_tokens_come_from_every_file(tmp_path: Path) -> None:
    path = folders.write(
        tmp_path,
        folders.byte_level(),
        config={"eos_token_id": 10, "text_config": {"eos_token_id": [11]}},
        generation_config={"eos_token_id": [4, 12]},
    )
    assert load_tokenizer(path).stop_tokens == {2, 4, 10, 11, 12}


def test_a_broken_generation_config_does_not_break_the_model(tmp_path: Path) -> None:
    path = folders.write(tmp_path, folders.byte_level())
    (tmp_path / "generation_config.json").write_text("{")
    assert load_tokenizer(path).stop_tokens == {2}


def test_the_template_is_found_where_models_keep_it(tmp_path: Path) -> None:
    """T52: chat_template.jinja found; it wins over tokenizer_config.json."""
    config = {"chat_template": "config"}
    for name, in_config, file, content, expected in [
        ("a", config, None, "", "config"),
        ("b", config, "chat_template.jinja", "jinja", "jinja"),
        ("c", {}, "chat_template.jinja", "jinja", "jinja"),
        ("d", {}, "chat_template.json", json.dumps({"chat_template": "json"}), "json"),
        ("e", config, "chat_template.json", json.dumps({"chat_template": "json"}), "config"),
    ]:
        folder = tmp_path / name
        path = folders.write(folder, folders.byte_level(), tokenizer_config=in_config)
        if file is not None:
            (folder / file).write_text(content)
        tokenizer = load_tokenizer(path)
        assert tokenizer.has_chat_template
        assert render(tokenizer) == expected


async def test_a_model_without_a_template_takes_completions_only(tmp_path: Path) -> None:
    """T52."""
    tokenizer = load_tokenizer(folders.write(tmp_path, folders.byte_level()))
    maker = PromptMaker(TextOptions())
    with pytest.raises(NoChatTemplate, match=r"'m' has no chat template.*/v1/completions"):
        await maker.chat_prompt(tokenizer, HELLO, model="m")
    with pytest.raises(NoChatTemplate):
        render(tokenizer)
    assert await maker.completion_prompt(tokenizer, "hello") == tokenizer.encode(
        "hello", add_special_tokens=False
    )


async def test_a_prompt_begins_once(tmp_path: Path) -> None:
    """No second <s> where the template writes one; a completion gets the tokenizer's own."""
    path = folders.write(
        tmp_path,
        folders.beginning_with_bos(folders.byte_level()),
        tokenizer_config={"chat_template": "{{ bos_token }}" + folders.CHATML},
    )
    tokenizer = load_tokenizer(path)
    maker = PromptMaker(TextOptions())
    chat = await maker.chat_prompt(tokenizer, HELLO, model="m")
    completion = await maker.completion_prompt(tokenizer, "hello")
    assert chat.count(1) == completion.count(1) == 1
    assert chat[0] == completion[0] == 1
    assert tokenizer.decode(chat, skip_special_tokens=False) == (
        "<s><|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    )


def test_template_arguments_reach_the_template_but_not_the_library(tmp_path: Path) -> None:
    tokenizer = templated(tmp_path, "{{ tone }}{{ messages[0].content }}")
    assert render(tokenizer, tone="calm ") == "calm hello"
    with pytest.raises(TemplateFailed, match="chat_template"):
        render(tokenizer, chat_template="{{ 1 }}")


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('Roles must alternate') }}", "Roles must alternate"),
        ("{{ messages[0].missing.field }}", "missing"),
        ("{{ 1 // 0 }}", "ZeroDivisionError"),
        ("{% for i in range(10**9) %}{% endfor %}", "Range too big"),
        ("{{ ((messages[0].content | length) ** 300000) is odd }}", "too large"),
        ("{{ (10 ** 300000) is odd }}", "too large"),
        ("{{ 'x' * 10**9 }}", "too large"),
        ("{{ 10**9 * messages }}", "too large"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "not safely callable|unsafe"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
    ],
)
def test_what_a_template_raises_fails_the_request_with_its_words(
    tmp_path: Path, template: str, reason: str
) -> None:
    tokenizer = templated(tmp_path, template)
    with pytest.raises(TemplateFailed, match=reason) as caught:
        render(tokenizer)
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("\n{% for x in %}", "line 2: Expected an expression"),
        ("{{ messages | nothing_known }}", "line 1: No filter named 'nothing_known'"),
    ],
)
def test_what_is_no_template_is_the_fault_of_the_model_not_of_the_messages(
    tmp_path: Path, template: str, reason: str
) -> None:
    tokenizer = templated(tmp_path, template)
    with pytest.raises(ModelBroken, match=f"chat template is wrong in {reason}") as caught:
        render(tokenizer)
    assert caught.value.param == "model"


def test_ordinary_arithmetic_of_a_template_goes_on_as_it_was(tmp_path: Path) -> None:
    text = "{{ 3 * 4 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ '-' * 5 }} {{ 1.5 * 2 }} {{ [1] * 2 }}"
    assert render(templated(tmp_path, text)) == "12 1024 0.5 ----- 3.0 [1, 1]"


def test_a_render_is_asked_as_its_text_grows_whether_to_go_on(tmp_path: Path) -> None:
    endless = (
        "{% for i in range(99999) %}{% for j in range(99999) %}{{ 'word ' }}"
        "{% endfor %}{% endfor %}"
    )
    tokenizer = templated(tmp_path, endless)
    asked: list[int] = []

    def check(characters: int) -> None:
        asked.append(characters)
        if characters > 1000:
            raise TemplateFailed("enough", param="messages")

    with pytest.raises(TemplateFailed, match=r"^enough$"):
        tokenizer.render(HELLO, template_arguments={}, check=check)
    assert max(asked) <= 1005


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro twice(n) %}{% if n %}{% set a = twice(n - 1) %}{% set b = twice(n - 1) %}"
        "{% endif %}{% endmacro %}{% set nothing = twice(60) %}",
    ],
    ids=["loops", "macros"],
)
def test_a_render_that_writes_nothing_is_asked_as_well(tmp_path: Path, template: str) -> None:
    tokenizer = templated(tmp_path, template)
    asked = 0

    def check(_: int) -> None:
        nonlocal asked
        asked += 1
        if asked > 1000:
            raise TemplateFailed("enough", param="messages")

    with pytest.raises(TemplateFailed, match=r"^enough$"):
        tokenizer.render(HELLO, template_arguments={}, check=check)


def test_loops_and_macros_that_are_asked_write_what_they_wrote(tmp_path: Path) -> None:
    text = (
        "{% macro tag(x='u') %}<{{ x }}{{ caller() }}>{% endmacro %}"
        "{% for i in range(5) if i != 3 %}{{ loop.index }}{{ i }},{% else %}none{% endfor %}"
        "{% for i in [] %}{% else %}none{% endfor %}{% call tag() %}in{% endcall %}"
    )
    assert render(templated(tmp_path, text)) == "10,21,32,44,none<uin>"


def test_a_template_that_walks_parts_gets_parts(tmp_path: Path) -> None:
    only_parts = (
        "{% for m in messages %}{% for part in m['content'] %}"
        "{{ part['text'] }}{% endfor %}{% endfor %}"
    )
    both = (
        "{% for m in messages %}{% if m['content'] is string %}s:{{ m['content'] }}"
        "{% else %}p:{{ m['content'][0]['text'] }}{% endif %}{% endfor %}"
    )
    assert render(templated(tmp_path / "a", only_parts)) == "hello"
    assert render(templated(tmp_path / "b", both)) == "s:hello"


def test_loading_needs_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T71."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    for model_type in ("llama", "mistral", "gemma", "unknown_model"):
        path = folders.write(
            tmp_path / model_type, folders.byte_level(), config={"model_type": model_type}
        )
        assert load_tokenizer(path).vocab_size > 256


def with_code(folder: Path, model_type: str, **tokenizer_config: Any) -> tuple[str, Path]:
    """A model that wants code of its own run, and the file which that code would make."""
    marker = folder.parent / "ran"
    references = {"AutoTokenizer": ["evil.Evil", "evil.Evil"], "AutoConfig": "evil.Config"}
    path = folders.write(
        folder,
        folders.byte_level(),
        config={"model_type": model_type, "model_file": "evil.py", "auto_map": references},
        tokenizer_config=tokenizer_config,
    )
    (folder / "evil.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    return path, marker


@pytest.mark.parametrize("model_type", ["llama", "unknown_model"])
def test_code_in_the_folder_is_never_run(tmp_path: Path, model_type: str) -> None:
    references = {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}
    path, marker = with_code(
        tmp_path / "model", model_type, tokenizer_class="Evil", auto_map=references
    )
    with pytest.raises(ModelBroken, match=r"code of its own.*never run") as caught:
        load_tokenizer(path)
    assert "trust_remote_code" not in caught.value.message
    assert not marker.exists()


@pytest.mark.parametrize("model_type", ["llama", "unknown_model"])
def test_a_tokenizer_that_needs_no_code_loads_beside_it(tmp_path: Path, model_type: str) -> None:
    path, marker = with_code(tmp_path / "model", model_type)
    assert load_tokenizer(path).vocab_size > 256
    assert not marker.exists()


@pytest.mark.parametrize(
    ("file", "key"),
    [
        ("config", "model_type"),
        ("tokenizer_config", "chat_template_type"),
        ("tokenizer_config", "tool_parser_type"),
    ],
)
@pytest.mark.parametrize("name", ["..os", "os.path", "a/b", "", 5, ["x"]])
def test_names_that_would_leave_their_package_are_refused(
    tmp_path: Path, file: str, key: str, name: Any
) -> None:
    path = folders.write(tmp_path, folders.byte_level(), **{file: {key: name}})
    with pytest.raises(ModelBroken, match=rf"{file}\.json: {key}"):
        load_tokenizer(path)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("tokenizer.json", "{}"),
        ("tokenizer.json", "version https://git-lfs.github.com/spec/v1\n"),
        ("tokenizer_config.json", "{"),
        ("config.json", "[]"),
        ("config.json", b"\xff\xfe"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, file: str, content: str | bytes) -> None:
    """T61."""
    path = folders.write(tmp_path, folders.byte_level())
    data = content if isinstance(content, bytes) else content.encode()
    (tmp_path / file).write_bytes(data)
    with pytest.raises(ModelBroken, match=file.replace(".", r"\.")) as caught:
        load_tokenizer(path)
    assert caught.value.details == {"file": str(tmp_path / file)}


def test_a_folder_without_a_tokenizer_is_broken(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ModelBroken, match=r"tokenizer\.json"):
        load_tokenizer(str(tmp_path))
    with pytest.raises(ModelAway, match="does not exist any more"):
        load_tokenizer(str(tmp_path / "none"))


def test_other_threads_go_on_while_a_long_text_is_encoded(tmp_path: Path) -> None:
    """T19. The loop is one of them: /health would not answer for as long."""
    tokenizer = load_tokenizer(folders.write(tmp_path, folders.byte_level()))
    gaps = []
    with ThreadPoolExecutor(1) as pool:
        began = last = time.perf_counter()
        encoding = pool.submit(tokenizer.encode, ASCII * 50_000, add_special_tokens=True)
        while not encoding.done():
            time.sleep(0.001)
            gaps.append(time.perf_counter() - last)
            last += gaps[-1]
    assert max(gaps) < (last - began) / 2


@every_kind
def test_many_threads_may_use_one_tokenizer(
    tmp_path: Path, build: Callable[[], RustTokenizer], joining: str, text: str
) -> None:
    rust = beginning = folders.beginning_with_bos(build())
    rust.enable_truncation(max_length=4)
    rust.enable_padding(length=8)
    config = {"chat_template": folders.CHATML}
    tokenizer = load_tokenizer(folders.write(tmp_path, beginning, tokenizer_config=config))

    def work(i: int) -> tuple[int, str, str]:
        long = text * (1 + i % 3)
        tokens = tokenizer.encode(long, add_special_tokens=i % 2 == 0)
        back = tokenizer.decode(tokens, skip_special_tokens=True)
        return i % 3, back, render(tokenizer)

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(work, range(200)))
    assert {(i, back == text * (1 + i)) for i, back, _ in results} == {(i, True) for i in range(3)}
    assert len({rendered for _, _, rendered in results}) == 1


@every_kind
def test_a_tokenizer_that_only_one_thread_may_use_is_shared_all_the_same(
    tmp_path: Path, build: Callable[[], RustTokenizer], joining: str, text: str
) -> None:
    folder = folders.write(tmp_path, folders.beginning_with_bos(build()))
    coding = LockedCoding(mlx_lm_tokenizer(Path(folder)))
    direct = load_tokenizer(folder)

    def work(_: int) -> tuple[list[int], str]:
        tokens = coding.encode(text, add_special_tokens=True)
        return tokens, coding.decode(tokens, skip_special_tokens=True)

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(work, range(100)))
    assert all(result == (direct.encode(text, add_special_tokens=True), text) for result in results)
