"""The table of KV bytes of published configs, column by column; it is not part of the repository."""

import csv
import re
from collections import Counter
from pathlib import Path

import pytest

from pdmodel.llm.architecture import Architecture
from pdmodel.llm.hf_config import read_hf_config
from pdmodel.llm.kinds import LayerKind, Mixer
from pdmodel.llm.kv_cache import entry_bytes, growing_bytes, kv_bytes_per_layer, kv_bytes_per_token, kv_constant_bytes

CONFIGS = Path(__file__).parents[3] / "shared" / "data" / "hf_configs"
TABLE = CONFIGS / "KV_BYTES.csv"
ROWS = list(csv.DictReader(TABLE.read_text().splitlines())) if TABLE.exists() else []
# What the column of kinds calls a layer, and which layers it means.
NAMES = {
    "full": LayerKind.FULL,
    "global": LayerKind.FULL,
    "sliding": LayerKind.WINDOW,
    "chunked": LayerKind.CHUNKED,
    "gated-delta": LayerKind.LINEAR,
    "lightning": LayerKind.LINEAR,
    "Mamba-2": LayerKind.LINEAR,
    "MoE": LayerKind.NONE,
    "GQA": LayerKind.FULL,
}


def kinds(arch: Architecture) -> Counter[LayerKind]:
    return Counter(arch.mixer(layer).kind for layer in range(arch.layers))


def per_layer(mixer: Mixer) -> float:
    """What the table calls bytes per token and layer: what grows; of a window or block, what a token takes in it."""
    return entry_bytes(mixer) if mixer.kind in (LayerKind.WINDOW, LayerKind.CHUNKED) else growing_bytes(mixer)


def check_kinds(arch: Architecture, words: str) -> None:
    found = kinds(arch)
    counted = re.findall(r"(\d+) (full|global|sliding|chunked|gated-delta|lightning|Mamba-2|MoE|GQA)", words)
    for number, name in counted:
        assert found[NAMES[name]] == int(number), words
    if not counted and words in ("MHA", "GQA"):
        assert set(found) == {LayerKind.FULL}
    if words.startswith("MLA"):
        assert set(found) == {LayerKind.LATENT}
        assert (arch.mixer(0).indexer is not None) == ("DSA" in words)
    window = re.search(r"(?:sliding|chunked) \((\d+)", words)
    if window:
        windows = {arch.mixer(layer).window for layer in range(arch.layers)} - {None}
        assert windows == {int(window[1])}


def check_per_layer(arch: Architecture, words: str) -> None:
    mixers = [arch.mixer(layer) for layer in range(arch.layers)]
    if words.isdecimal():
        assert {per_layer(mixer) for mixer in mixers if mixer.kind is not LayerKind.NONE} == {int(words)}
        return
    ratios = re.findall(r"ratio (\d+): (\d+)(?:\+(\d+))?", words)
    for ratio, entry, key in ratios:
        of_ratio = [mixer for mixer in mixers if mixer.compression and mixer.compression.ratio == int(ratio)]
        assert of_ratio and {growing_bytes(mixer) for mixer in of_ratio} == {int(entry) + int(key or 0)}
    words_of = {
        "full": LayerKind.FULL,
        "attention": LayerKind.FULL,
        "sliding": LayerKind.WINDOW,
        "linear": LayerKind.LINEAR,
    }
    named = re.findall(r"(full|attention|sliding|linear) (\d+)", words)
    for name, size in named:
        assert {per_layer(mixer) for mixer in mixers if mixer.kind is words_of[name]} == {int(size)}
    assert ratios or named


@pytest.mark.skipif(not ROWS, reason="the folder of published configs is not beside the repository")
def test_the_table_has_every_config() -> None:
    assert {row["file"] for row in ROWS} == {path.name for path in CONFIGS.glob("*.json")}


@pytest.mark.skipif(not ROWS, reason="the folder of published configs is not beside the repository")
@pytest.mark.parametrize("row", ROWS, ids=[row["model"] for row in ROWS])
def test_every_column(row: dict[str, str]) -> None:
    arch = read_hf_config(CONFIGS / row["file"])
    layers = re.match(r"(\d+)(?: \((.*)\))?", row["layers"])
    assert layers is not None and arch.layers == int(layers[1])
    for number, ratio in re.findall(r"(\d+) ratio (\d+)", layers[2] or ""):
        ratios = [arch.mixer(layer).compression.ratio for layer in range(arch.layers)]  # type: ignore[union-attr]
        assert ratios.count(int(ratio)) == int(number)
    check_kinds(arch, row["attention_kind"])
    check_per_layer(arch, row["kv_bytes_per_token_per_layer_bf16"])
    assert kv_bytes_per_token(arch) == int(row["growing_kv_bytes_per_token_total_bf16"])
    assert sum(kv_bytes_per_layer(arch)) == kv_bytes_per_token(arch)
    assert kv_constant_bytes(arch) == int(row["constant_bytes_per_sequence"])
    # Published counts in the names, where the name has one.
    named = re.search(r"-(\d+)B", row["model"])
    if named and "A" not in row["model"].split("-")[-1]:
        assert arch.parameters == pytest.approx(int(named[1]) * 1e9, rel=0.1)
