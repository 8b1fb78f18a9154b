"""The machine cards: found by name, alias or path; complete, sourced, and refused in one sentence when wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from mbsolve.hardware.card import (
    CALIBRATION,
    DATA,
    CardError,
    Machine,
    load_machine,
    machine_names,
    parse_machine,
)

NAMES = machine_names()


def raw_card(name: str) -> dict[str, object]:
    raw = yaml.safe_load((DATA / f"{name}.yaml").read_text())
    assert isinstance(raw, dict)
    return raw


def test_the_four_cards_are_shipped() -> None:
    assert NAMES == ("b200", "gb200", "h100", "h200")


@pytest.mark.parametrize("name", NAMES)
def test_every_value_has_a_source(name: str) -> None:
    machine, raw = load_machine(name), raw_card(name)
    assert set(Machine.model_fields) - {"name", "title", "aliases", "sources"} <= set(machine.sources)
    calibration = raw["calibration"]
    assert isinstance(calibration, dict)
    for constant, leaf in calibration.items():
        assert machine.sources[f"calibration.{constant}"] == leaf["source"]
    assert all(machine.sources.values())


@pytest.mark.parametrize("name", NAMES)
def test_the_calibration_is_complete_and_said_in_words(name: str) -> None:
    machine = load_machine(name)
    absent = set() if "fp4" in machine.matrix_flops else {"gemm_fp4_fraction"}
    assert set(machine.calibration) == set(CALIBRATION) - absent
    assert all(
        0 < value <= 1 for constant, value in machine.calibration.items() if constant.endswith("_fraction")
    )


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("H100", "h100"),
        ("h100-sxm", "h100"),
        ("H100-SXM-80GB", "h100"),
        ("h100_80gb", "h100"),
        ("GB200 NVL72", "gb200"),
        ("B200", "b200"),
    ],
)
def test_aliases_ignore_case_and_separators(word: str, name: str) -> None:
    assert load_machine(word).name == name


def test_no_two_cards_share_a_name() -> None:
    words = [word for name in NAMES for word in (name, *load_machine(name).aliases)]
    spellings = ["".join(c for c in word.lower() if c not in "-_.") for word in words]
    assert len(set(spellings)) == len(spellings)


def test_an_unknown_name_gets_a_proposal() -> None:
    with pytest.raises(CardError, match="did you mean 'h100-sxm'"):
        load_machine("h100-sxn")


def test_facts_of_the_cards() -> None:
    h100, gb200 = load_machine("h100"), load_machine("gb200")
    assert h100.hbm_bytes == round(79.1 * 2**30)
    assert h100.compute_capability == (9, 0) and gb200.compute_capability == (10, 0)
    assert (gb200.domain_network.gpus, gb200.block_gpus, gb200.gpus_per_node) == (72, 64, 4)
    assert gb200.scaleout_network.gpus is None
    assert h100.calibration["fp8_block_factor"] == 0.88
    assert h100.calibration["host_op_seconds"] == pytest.approx(83.9e-6)
    assert gb200.calibration["host_op_seconds"] == pytest.approx(94.5e-6)
    assert "nvfp4" not in h100.supported_precisions and "nvfp4" in gb200.supported_precisions


def test_a_users_card_takes_what_it_leaves_out_from_its_family(tmp_path: Path) -> None:
    raw = raw_card("h100") | {"name": "h20", "calibration": {"attention_fraction": 0.5}, "source": "my sheet"}
    path = tmp_path / "h20.yaml"
    path.write_text(yaml.safe_dump(raw))
    machine, shipped = load_machine(path), load_machine("h100")
    assert machine.calibration == {**shipped.calibration, "attention_fraction": 0.5}
    assert machine.sources["calibration.attention_fraction"] == "my sheet"
    assert machine.sources["calibration.kernel_seconds"].startswith("card h100: H200 micro-benchmark")


def test_a_family_without_a_card_needs_its_own_calibration() -> None:
    raw = raw_card("b200") | {"calibration_family": "x300", "calibration": {}}
    with pytest.raises(CardError, match="calibration lacks gemm_bf16_fraction"):
        parse_machine(raw)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hbm_byte": 3}, "unknown field 'hbm_byte'; did you mean 'hbm_bytes'?"),
        ({"hbm_bytes": "80GB"}, "hbm_bytes is '80GB', but it must be a valid integer"),
        ({"hbm_bytes_per_second": -1}, "hbm_bytes_per_second is -1"),
        ({"gpus_per_node": 0}, "gpus_per_node is 0"),
        ({"generation": "volta"}, "generation is 'volta'"),
        ({"networks": []}, "networks reach []"),
        ({"block_gpus": 9}, "block_gpus is 9, but a domain has 8 GPUs"),
        (
            {"supported_precisions": ["bf16", "nvfp4"]},
            "supported_precisions has nvfp4, but matrix_flops lacks fp4",
        ),
        ({"matrix_flops": {"fp8": 1e15}}, "matrix_flops lacks bf16"),
        ({"calibration": {"speed": 1.0}}, "calibration has speed"),
        ({"calibration": None}, "calibration is None"),
        ({"source": []}, "source is []"),
    ],
)
def test_a_wrong_card_is_refused_in_one_sentence(change: dict[str, object], said: str) -> None:
    with pytest.raises(CardError) as caught:
        parse_machine(raw_card("h100") | change)
    assert said in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5, 0.8, 0.98])
def test_a_card_cut_short_is_refused(tmp_path: Path, share: float) -> None:
    text = (DATA / "gb200.yaml").read_text()
    path = tmp_path / "cut.yaml"
    path.write_text(text[: int(len(text) * share)])
    with pytest.raises(CardError) as caught:
        load_machine(path)
    assert "\n" not in str(caught.value)


def test_a_card_is_frozen_and_hashable() -> None:
    machine = load_machine("h100")
    assert hash(machine) == hash(load_machine("H100-SXM"))
    with pytest.raises(ValueError, match="frozen"):
        machine.hbm_bytes = 3
