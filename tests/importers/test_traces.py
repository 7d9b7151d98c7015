"""Traces: the three formats, prefix hits against a cache written down plainly, odd files, memory."""

import json
import math
import random
import re
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdmodel.errors import InputError
from pdmodel.importers.trace_formats import TraceFormat
from pdmodel.importers.traces import ImportedTrace, read_trace
from pdmodel.workload.prefix_cache import DENSE_IDS, EndlessCache, LruCache
from pdmodel.workload.trace import Trace, at_percentile, summary

PUBLISHED = Path(__file__).parents[3] / "shared" / "data" / "traces"

MOONCAKE = [
    {"timestamp": 0, "input_length": 1100, "output_length": 10, "hash_ids": [0, 1, 2]},
    {"timestamp": 27, "input_length": 1536, "output_length": 500, "hash_ids": [0, 1, 3]},
    {"timestamp": 3000, "input_length": 1100, "output_length": 1, "hash_ids": [0, 1, 2]},
    {"timestamp": 4500, "input_length": 600, "output_length": 2, "hash_ids": [7, 8]},
]
AZURE_2023 = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:17:03.9799600,4808,10\n"
    "2023-11-16 18:17:04.0319600,3180,8\n"
    "2023-11-16 18:18:03.9799600,110,27\n"
)
# The files of 2024 have a zone, and no fraction where it is zero.
AZURE_2024 = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2024-05-10 00:00:00.009930+00:00,2162,5\n"
    "2024-05-10 00:00:01+00:00,2399,6\n"
)
BURSTGPT = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,472,18,490,Conversation log\n"
    "45.5,GPT-4,1087,0,1087,API log\n"
)
BURSTGPT_SESSIONS = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    '5,abc,1.5,ChatGPT,472,18,490,"Conversation, log"\n'
)


def jsonl(rows: Sequence[object]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


TEXTS = {
    "mooncake": jsonl(MOONCAKE),
    "azure 2023": AZURE_2023,
    "azure 2024": AZURE_2024,
    "burstgpt": BURSTGPT,
    "burstgpt with sessions": BURSTGPT_SESSIONS,
}


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., ImportedTrace]:
    def from_text(text: str | bytes, *, strict: bool = False, cache_blocks: int | None = None) -> ImportedTrace:
        path = tmp_path / "trace.txt"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_trace(path, strict=strict, cache_blocks=cache_blocks)

    return from_text


Read = Callable[..., ImportedTrace]


def test_mooncake(read: Read) -> None:
    found = read(TEXTS["mooncake"], strict=True)
    assert found.kind is TraceFormat.MOONCAKE
    assert found.trace.arrival_s.tolist() == [0, 0.027, 3, 4.5]
    assert found.trace.input_tokens.tolist() == [1100, 1536, 1100, 600]
    assert found.trace.output_tokens.tolist() == [10, 500, 1, 2]
    # The third prompt is the first one again: all of it is cached but the token that gives the logits.
    assert found.trace.cached_tokens is not None
    assert found.trace.cached_tokens.tolist() == [0, 1024, 1099, 0]
    assert (found.malformed, found.warnings) == (0, ())


def test_azure_of_both_years(read: Read) -> None:
    found = read(AZURE_2023)
    assert found.kind is TraceFormat.AZURE
    assert found.trace.arrival_s.tolist() == [0, 0.052, 60]
    assert found.trace.input_tokens.tolist() == [4808, 3180, 110]
    assert found.trace.output_tokens.tolist() == [10, 8, 27]
    assert found.trace.cached_tokens is None
    assert read(AZURE_2024).trace.arrival_s.tolist() == [0, 0.99007]


def test_burstgpt_with_and_without_sessions(read: Read) -> None:
    found = read(BURSTGPT)
    assert found.kind is TraceFormat.BURSTGPT
    assert found.trace.arrival_s.tolist() == [0, 40.5]
    assert found.trace.input_tokens.tolist() == [472, 1087]
    assert found.trace.output_tokens.tolist() == [18, 0]
    assert any("1 requests have no output tokens" in text for text in found.warnings)
    sessions = read(BURSTGPT_SESSIONS)
    assert (sessions.trace.input_tokens.tolist(), sessions.malformed) == ([472], 0)


def plain_lru(requests: Sequence[Sequence[int]], capacity: int) -> list[int]:
    """A list, least recently used first; blocks of a prompt are used from the last to the first."""
    held: list[int] = []
    found = []
    for blocks in requests:
        hits = 0
        while hits < len(blocks) and blocks[hits] in held:
            hits += 1
        found.append(hits)
        for block in blocks[::-1]:
            if block in held:
                held.remove(block)
            held.append(block)
        held = held[-capacity:]
    return found


PROMPTS = st.lists(st.lists(st.integers(-2, 12), max_size=8), max_size=20)


@given(PROMPTS, st.integers(1, 12))
def test_hits_of_a_cache_with_an_end(requests: list[list[int]], capacity: int) -> None:
    cache = LruCache(capacity)
    assert [cache.add(blocks) for blocks in requests] == plain_lru(requests, capacity)


@given(PROMPTS, st.booleans())
def test_hits_of_a_cache_without_an_end(requests: list[list[int]], large: bool) -> None:
    if large:  # ids beyond those that have a byte each
        requests = [[block * DENSE_IDS for block in blocks] for blocks in requests]
    cache = EndlessCache()
    assert [cache.add(blocks) for blocks in requests] == plain_lru(requests, 1000)


@given(PROMPTS, st.integers(1, 10))
def test_a_larger_cache_never_hits_less(requests: list[list[int]], capacity: int) -> None:
    small, large = LruCache(capacity), LruCache(capacity + 1)
    for blocks in requests:
        assert small.add(blocks) <= large.add(blocks)


def test_the_head_of_a_prompt_outlives_its_tail() -> None:
    cache = LruCache(4)
    cache.add([1, 2, 3, 4, 5, 6])
    assert cache.add([1, 2, 3, 4, 5, 6]) == 4


@pytest.mark.parametrize("name", ["conversation", "synthetic"])
def test_published_mooncake_traces(name: str) -> None:
    path = PUBLISHED / f"mooncake_{name}_head1500.jsonl"
    if not path.exists():
        pytest.skip("the published traces are not beside the repository")
    found = read_trace(path, strict=True)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    seen: set[int] = set()
    cached = []
    for row in rows:
        hits = next((k for k, block in enumerate(row["hash_ids"]) if block not in seen), len(row["hash_ids"]))
        cached.append(min(512 * hits, row["input_length"] - 1))
        seen.update(row["hash_ids"])
    assert found.trace.cached_tokens is not None
    assert found.trace.cached_tokens.tolist() == cached
    assert found.trace.requests == 1500
    figures = summary(found.trace)
    assert figures.hit_rate == pytest.approx(sum(cached) / sum(row["input_length"] for row in rows))
    smaller = [read_trace(path, cache_blocks=blocks).trace.cached_tokens for blocks in (1000, 10_000, 10**6)]
    sums = [int(values.sum()) for values in smaller if values is not None]
    assert sums == sorted(sums)
    assert sums[0] < sums[1] < sums[2] == sum(cached)


@pytest.mark.parametrize(("name", "first"), [("code", (4808, 10)), ("conv", (374, 44))])
def test_published_azure_traces(name: str, first: tuple[int, int]) -> None:
    path = PUBLISHED / f"azure2023_{name}_head2000.csv"
    if not path.exists():
        pytest.skip("the published traces are not beside the repository")
    trace = read_trace(path, strict=True).trace
    assert trace.requests == 2000
    assert (trace.input_tokens[0], trace.output_tokens[0]) == first


def test_figures_of_a_trace() -> None:
    trace = Trace(
        np.array([0.0, 1.0, 2.0, 20.0]),
        np.array([100, 300, 200, 400]),
        np.array([1, 2, 3, 4]),
        np.array([0, 0, 100, 100]),
    )
    figures = summary(trace)
    assert (figures.requests, figures.duration_s, figures.requests_per_s) == (4, 20, 0.2)
    assert figures.input_tokens_per_s == 50
    assert figures.busiest_input_tokens_per_s == 60
    assert figures.hit_rate == 0.2
    assert (figures.input_tokens.p50, figures.input_tokens.p90, figures.input_tokens.mean) == (200, 400, 250)
    assert [at_percentile(trace, p) for p in (0, 25, 50, 75, 100)] == [0, 0, 2, 1, 3]


def test_malformed_lines_are_counted_and_strict_refuses(read: Read) -> None:
    lines = TEXTS["mooncake"].splitlines()
    bad = [lines[0], '{"timestamp": 1', lines[1], "[]", '{"timestamp": 1, "input_length": "x", "output_length": 1}']
    bad += ['{"timestamp": 1, "input_len": 5, "output_length": 1}', lines[2], '{"timestamp": 1e999, "input_length": 5']
    bad += ['{"timestamp": -1, "input_length": 5, "output_length": 1}', "{}", ""]
    found = read("\n".join(bad))
    assert (found.trace.requests, found.malformed) == (3, 7)
    assert [one.line for one in found.bad_lines] == [2, 4, 5, 6, 8]
    reasons = [one.reason for one in found.bad_lines]
    assert reasons[0].startswith("malformed JSON")
    assert reasons[2] == "input_length is 'x', no number of tokens"
    assert reasons[3] == "no key 'input_length' (is it 'input_len'?)"
    assert found.warnings[0].startswith("7 of 10 lines are malformed")
    with pytest.raises(InputError, match=r"line 2: malformed JSON"):
        read("\n".join(bad), strict=True)


def test_malformed_lines_of_a_table(read: Read) -> None:
    text = AZURE_2023 + "yesterday,5,5\n2023-11-16 18:18:04,x,5\n2023-11-16 18:18:04,5\n2023-11-16 18:18:04,0,5\n"
    found = read(text + "2023-11-16 18:18:04,7.0,5\n2023-11-16 18:18:04,7.5,5\n")
    assert [one.reason for one in found.bad_lines] == [
        "TIMESTAMP is 'yesterday', no time",
        "ContextTokens is 'x', no number of tokens",
        "2 values where the heading has 3 columns",
        "no input tokens",
        "ContextTokens is 7.5, no number of tokens",
    ]
    assert (found.trace.requests, found.malformed) == (4, 5)


REFUSED: list[tuple[str, bytes, str]] = [
    ("empty", b"", "is empty"),
    ("blank", b" \n\n\r\n", "is empty"),
    ("blank with a mark", b"\xef\xbb\xbf\n\n", "is empty"),
    ("no heading", b"2023-11-16 18:17:03,4808,10\n", "no heading of a known trace"),
    ("a column missing", b"TIMESTAMP,ContextTokens\n2023-11-16 18:17:03,4808\n", "no column 'GeneratedTokens'"),
    ("a column misspelt", AZURE_2023.replace("Generated", "Genrated").encode(), "(is it 'GenratedTokens'?)"),
    ("no time", b"Request tokens,Response tokens\n1,2\n", "no column 'Timestamp'"),
    ("heading alone", b"TIMESTAMP,ContextTokens,GeneratedTokens\n", "no request below the heading"),
    ("nothing fits", b'{"a": 1}\n{"b": 2}\n', "no key 'timestamp'"),
    ("a list", json.dumps(MOONCAKE).encode(), "begins as a list"),
    ("a long heading", b"TIMESTAMP" + b"x" * 9000 + b",ContextTokens,GeneratedTokens\n", "is it 'TIMESTAMPxxx"),
    ("prose", b"once upon a time\n" * 50, "no heading of a known trace"),
    ("gzip", b"\x1f\x8b\x08\x00abc", "compressed with gzip"),
    ("Git LFS", b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 5\n", "pointer of Git LFS"),
    ("bytes", bytes(range(256)), "is no text"),
    ("UTF-16 without a mark", AZURE_2023.encode("utf-16-le"), "is no text"),
]


@pytest.mark.parametrize(("content", "words"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_refused_files(read: Read, content: bytes, words: str) -> None:
    with pytest.raises(InputError, match=re.escape(words)) as refused:
        read(content)
    assert "trace.txt" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 700


def test_a_name_that_no_file_can_have() -> None:
    with pytest.raises(InputError, match="is no file name"):
        read_trace("a\0b")


def test_a_line_without_an_end_is_refused(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pdmodel.importers.text_lines.CHUNK_BYTES", 100)
    monkeypatch.setattr("pdmodel.importers.text_lines.LONGEST_LINE", 1000)
    with pytest.raises(InputError, match="line 2: longer than 1000 letters"):
        read(b'{"timestamp": 0}\n' + b"x" * 5000)


SPELLINGS: dict[str, Callable[[str], bytes]] = {
    "CRLF": lambda text: text.replace("\n", "\r\n").encode(),
    "CR": lambda text: text.replace("\n", "\r").encode(),
    "byte order mark": lambda text: b"\xef\xbb\xbf" + text.encode(),
    "UTF-16": lambda text: text.encode("utf-16"),
    "blank lines": lambda text: text.replace("\n", "\n\n  \n").encode(),
    "no last line end": lambda text: text.rstrip("\n").encode(),
    "colours": lambda text: "".join(f"\x1b[32m{line}\x1b[0m\n" for line in text.splitlines()).encode(),
    "prose above": lambda text: b"# downloaded today\n" + text.encode(),
}


@pytest.mark.parametrize("how", SPELLINGS)
@pytest.mark.parametrize("name", TEXTS)
def test_spellings_of_the_same_trace(read: Read, name: str, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = read(TEXTS[name])
    monkeypatch.setattr("pdmodel.importers.text_lines.CHUNK_BYTES", 7)  # line ends and letters fall between parts
    found = read(SPELLINGS[how](TEXTS[name]))
    for column in ("arrival_s", "input_tokens", "output_tokens", "cached_tokens"):
        old, new = getattr(usual.trace, column), getattr(found.trace, column)
        assert (old is None and new is None) or np.array_equal(old, new)
    assert found.malformed == (1 if how == "prose above" else 0)


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_other_delimiters(read: Read, delimiter: str) -> None:
    assert read(AZURE_2023.replace(",", delimiter), strict=True).trace.requests == 3


def test_lines_out_of_order_are_sorted_and_told(read: Read) -> None:
    found = read(jsonl(MOONCAKE[::-1]))
    assert found.trace.arrival_s.tolist() == [0, 0.027, 3, 4.5]
    assert found.trace.input_tokens.tolist() == [1100, 1536, 1100, 600]
    assert any("3 times a request came before" in text for text in found.warnings)


def test_a_block_of_another_size_is_told(read: Read) -> None:
    rows = [{**row, "hash_ids": list(range(math.ceil(row["input_length"] / 16)))} for row in MOONCAKE]
    (warning,) = read(jsonl(rows)).warnings
    assert "--block-tokens 16 would fit" in warning


def test_requests_without_blocks(read: Read) -> None:
    rows = [{key: value for key, value in row.items() if key != "hash_ids"} for row in MOONCAKE]
    assert read(jsonl(rows)).trace.cached_tokens is None
    found = read(jsonl([*MOONCAKE, rows[0]]))
    assert any("1 of 5 requests have no hash_ids" in text for text in found.warnings)


def mutated(text: str, seed: int) -> bytes:
    """The text with a few accidents."""
    luck = random.Random(seed)
    for _ in range(luck.randint(1, 3)):
        lines = text.split("\n")
        accident = luck.randrange(8)
        if accident == 0:
            text = text[: luck.randint(0, len(text))]
        elif accident == 1:
            luck.shuffle(lines)
            text = "\n".join(lines)
        elif accident == 2:
            column = luck.randrange(4)
            text = "\n".join(",".join(c for k, c in enumerate(line.split(",")) if k != column) for line in lines)
        elif accident == 3:
            text = "\n".join(f"\x1b[{luck.randint(0, 99)}m{line}\x1b[" for line in lines)
        elif accident == 4:
            text = text.replace("\n", luck.choice(["\r\n", "\r", "\n\n", "\0", "\u2028"]))
        elif accident == 5:
            place = luck.randint(0, len(text))
            text = text[:place] + luck.choice(['"', "{", "[" * 9000, "9" * 5000, "é", "\0", "NaN", "-"]) + text[place:]
        elif accident == 6:
            text = text[luck.randint(0, len(text)) :]
        else:
            text = text.replace(luck.choice("0123456789"), luck.choice(["1e999", "-1", "null", "true", " ", "٣"]))
    content = bytearray(text.encode(luck.choice(["utf-8", "utf-8", "utf-16", "utf-32", "utf-16-be"]), "replace"))
    for _ in range(luck.choice([0, 0, 1, 20])):
        if content:
            content[luck.randrange(len(content))] = luck.randrange(256)
    return bytes(content)


@settings(max_examples=400)
@given(st.sampled_from(sorted(TEXTS)), st.integers(0, 2**32), st.booleans(), st.sampled_from([None, 1, 3]))
def test_no_accident_to_a_file_is_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, name: str, seed: int, strict: bool, blocks: int | None
) -> None:
    path = tmp_path_factory.getbasetemp() / "mutated_trace"
    path.write_bytes(mutated(TEXTS[name], seed))
    try:
        found = read_trace(path, strict=strict, cache_blocks=blocks)
    except InputError as error:
        assert "\n" not in str(error)
        assert len(str(error)) < 1000
        return
    trace = found.trace
    assert trace.requests > 0
    assert np.all(trace.input_tokens > 0)
    assert np.all(np.diff(trace.arrival_s) >= 0)
    assert trace.arrival_s[0] == 0
    assert trace.cached_tokens is None or np.all(
        (trace.cached_tokens >= 0) & (trace.cached_tokens < trace.input_tokens)
    )
    assert summary(trace).requests == trace.requests
    assert not (strict and found.malformed)


@given(st.binary(max_size=400))
def test_no_bytes_are_a_traceback(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "random_trace"
    path.write_bytes(content)
    with pytest.raises(InputError):
        read_trace(path)


def azure_file(path: Path, requests: int) -> Path:
    row = "2023-11-16 18:{:02d}:{:02d}.{:07d},{},{}\n"
    rows = (
        row.format(k // 60000 % 60, k // 1000 % 60, k % 1000 * 10000, k % 8000 + 1, k % 500) for k in range(requests)
    )
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(rows))
    return path


def mooncake_file(path: Path, requests: int) -> Path:
    rows = (
        {"timestamp": k, "input_length": 10240, "output_length": 5, "hash_ids": [0, *range(19 * k + 1, 19 * k + 20)]}
        for k in range(requests)
    )
    path.write_text(jsonl(list(rows)))
    return path


def peak_bytes(path: Path, cache_blocks: int | None) -> int:
    tracemalloc.start()
    try:
        read_trace(path, cache_blocks=cache_blocks)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("make", "few", "bytes_per_request", "cache_blocks"),
    [(azure_file, 8000, 150, None), (mooncake_file, 1000, 150 + 3 * 20, None), (mooncake_file, 1000, 150, 500)],
)
def test_memory_grows_with_the_requests_not_with_the_text(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[Path, int], Path],
    few: int,
    bytes_per_request: int,
    cache_blocks: int | None,
) -> None:
    monkeypatch.setattr("pdmodel.importers.text_lines.CHUNK_BYTES", 2**14)
    small, large = make(tmp_path / "small", few), make(tmp_path / "large", 5 * few)
    read_trace(small)  # imports and caches of the interpreter
    grown = peak_bytes(large, cache_blocks) - peak_bytes(small, cache_blocks)
    assert grown < 4 * few * bytes_per_request


def test_progress_is_told_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pdmodel.importers.text_lines.CHUNK_BYTES", 1000)
    path = azure_file(tmp_path / "trace.csv", 100)
    told: list[tuple[int, int]] = []
    read_trace(path, progress=lambda done, total: told.append((done, total)))
    size = path.stat().st_size
    assert told[-1] == (size, size)
    assert [done for done, _ in told] == [*range(1000, size, 1000), size]
