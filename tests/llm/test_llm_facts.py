"""Facts of shipped LLMs (published figures: tests/verification); other configs where the data is at hand."""

import csv
from pathlib import Path

import pytest

from pdmodel.errors import CoverageError
from pdmodel.llm.catalog import list_llms, load_llm
from pdmodel.llm.dtypes import KvDtype, WeightDtype
from pdmodel.llm.kv_cache import is_latent, kv_bytes_per_token, kv_bytes_per_token_layer, kv_constant_bytes

FACTS = Path(__file__).parents[1] / "published" / "llm_facts.csv"


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_shipped_llm_has_a_published_row() -> None:
    assert list_llms() == sorted(row["llm"] for row in rows(FACTS))


def test_constant_bytes_are_the_published_ones_and_none_elsewhere() -> None:
    for row in rows(FACTS):
        assert kv_constant_bytes(load_llm(row["llm"])) == int(row["kv_constant_bytes_bf16"] or 0), row["llm"]


def test_fp8_weights_do_not_change_the_cache() -> None:
    plain, quantised = load_llm("qwen3-235b-a22b"), load_llm("qwen3-235b-a22b-fp8")
    assert kv_bytes_per_token(plain) == kv_bytes_per_token(quantised)
    assert quantised.dtypes.experts is WeightDtype.FP8_BLOCK
    assert quantised.dtypes.other is WeightDtype.BF16
    assert quantised.weights_bytes / plain.weights_bytes == pytest.approx(0.5029, abs=1e-3)


def test_latent_cache() -> None:
    arch = load_llm("deepseek-v3")
    assert is_latent(arch)
    assert kv_bytes_per_token_layer(arch, KvDtype.FP8) == 576
    assert kv_bytes_per_token_layer(arch, KvDtype.FP8_DS_MLA) == 656
    assert not is_latent(load_llm("qwen3-8b"))
    with pytest.raises(CoverageError, match="fp8_ds_mla"):
        kv_bytes_per_token(load_llm("qwen3-8b"), KvDtype.FP8_DS_MLA)


def test_weights_of_a_rank() -> None:
    dense = load_llm("llama-3.1-70b")
    assert 8 * dense.weights_bytes_per_rank(8) == pytest.approx(dense.weights_bytes, rel=1e-3)
    latent = load_llm("deepseek-v3")
    # The projections to the latents are on every rank: eight ranks hold more than the whole.
    assert 8 * latent.weights_bytes_per_rank(8) > 1.005 * latent.weights_bytes
    assert latent.weights_bytes_per_rank(8, 64) < latent.weights_bytes_per_rank(8, 8)


def test_first_dense_layers() -> None:
    arch = load_llm("deepseek-v3")
    assert [arch.is_moe_layer(layer) for layer in (0, 2, 3, 60)] == [False, False, True, True]
    assert arch.mtp_layers == 1
