"""Parameters of every rank against Megatron-Core models that were really built, on a device without memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mbsolve.constraints.memory.shards import BLOCKS
from mbsolve.constraints.placement import Replay, chunks_of, stage_counts, virtual_stages
from mbsolve.constraints.vocabulary import Split
from mbsolve.models.card import load_model, model_names

ROWS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "meta_params.json").read_text())["rows"]


def label(row: dict[str, Any]) -> str:
    degrees = "-".join(f"{name}{row[name]}" for name in ("tp", "pp", "vpp", "cp", "ep", "etp"))
    return f"{row['card']}-{degrees}-rank{row['pp_rank']}"


@pytest.mark.parametrize("row", ROWS, ids=label)
def test_parameters_are_those_of_the_real_model(row: dict[str, Any]) -> None:
    model = load_model(row["card"]).model_copy(
        update={"mtp_num_layers": 0, "vocab_size": row["vocabulary_rows"], **row.get("overrides", {})}
    )
    split = Split(first=row.get("first"), last=row.get("last"), layout=row.get("layout"))
    stages = virtual_stages(model, row["pp"], row["vpp"], split)
    counts = stage_counts(chunks_of(stages, row["pp"], row["pp_rank"]), row["pp"], Replay())
    found = [(counts[block.per], block.count({"model": model, **row})) for block in BLOCKS]
    dense = sum(count * int(block.dense) for count, block in found)
    expert = sum(count * int(block.expert) for count, block in found)
    assert (dense, expert) == (row["dense"], row["expert"])


def test_the_rows_cover_the_cards_and_every_way_to_split() -> None:
    cards = {row["card"] for row in ROWS}
    assert cards <= set(model_names()) and len(cards) == 29
    assert {row["tp"] for row in ROWS} >= {1, 2, 4, 8, 16}
    for name in ("first", "last", "layout", "overrides"):
        assert any(name in row for row in ROWS)
    for name in ("pp", "vpp", "cp", "ep", "etp"):
        assert any(row[name] > 1 for row in ROWS)
    assert any(row["tp"] > load_model(row["card"]).num_query_groups for row in ROWS)
    assert any(row["vocabulary_rows"] != load_model(row["card"]).vocab_size for row in ROWS)
