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


def test_the_cards_are_shipped() -> None:
    assert NAMES == (
        "a100-80gb",
        "a800-80gb",
        "b200",
        "b300",
        "gb200",
        "gb300",
        "h100",
        "h20",
        "h200",
        "h800",
    )


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
    absent = {f"gemm_{form}_fraction" for form in ("fp8", "fp4") if form not in machine.matrix_flops}
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
        ("A100", "a100-80gb"),
        ("HGX B300", "b300"),
        ("GB300-NVL72", "gb300"),
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
    b300, gb300 = load_machine("b300"), load_machine("gb300")
    assert b300.compute_capability == gb300.compute_capability == (10, 3)
    assert b300.calibration["gemm_bf16_fraction"] == gb300.calibration["gemm_bf16_fraction"]
    assert (b300.calibration["host_op_seconds"], gb300.block_gpus) == (
        h100.calibration["host_op_seconds"],
        64,
    )
    assert h100.calibration["fp8_block_factor"] == 0.88
    assert 5e-5 < h100.calibration["host_op_seconds"] < gb200.calibration["host_op_seconds"] < 2e-4
    assert "nvfp4" not in h100.supported_precisions and "nvfp4" in gb200.supported_precisions


def test_a_users_card_takes_what_it_leaves_out_from_its_family(tmp_path: Path) -> None:
    raw = raw_card("h100") | {"name": "h20", "calibration": {"attention_fraction": 0.5}, "source": "my sheet"}
    path = tmp_path / "h20.yaml"
    path.write_text(yaml.safe_dump(raw))
    machine, shipped = load_machine(path), load_machine("h100")
    assert machine.calibration == {**shipped.calibration, "attention_fraction": 0.5}
    assert machine.sources["calibration.attention_fraction"] == "my sheet"
    assert machine.sources["calibration.kernel_seconds"].startswith("card h100: H200 micro-benchmark")


def test_every_family_has_a_card_to_take_from() -> None:
    for name in NAMES:
        raw = raw_card(name) | {"calibration": {}}
        machine = parse_machine(raw)
        assert set(machine.calibration) == set(load_machine(name).calibration)
    with pytest.raises(CardError, match="calibration lacks gemm_bf16_fraction"):
        parse_machine(raw_card("b200") | {"calibration": {}}, complete_from_family=False)


def test_what_is_not_measured_says_so() -> None:
    for name in ("a800-80gb", "h20"):
        sources = load_machine(name).sources
        assert all(
            "not measured on an" in sources[f"calibration.{c}"] for c in ("graph_left", "kernel_seconds")
        )
        assert "taken over" in sources["calibration_family"]


def test_an_ampere_machine_has_bf16_alone() -> None:
    a100 = load_machine("a100")
    assert a100.supported_precisions == ("bf16",) and set(a100.matrix_flops) == {"bf16"}
    assert "gemm_fp8_fraction" not in a100.calibration


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hbm_byte": 3}, "unknown field 'hbm_byte'; did you mean 'hbm_bytes'?"),
        ({"hbm_bytes": "80GB"}, "hbm_bytes is '80GB', but it must be a whole number"),
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
        (
            {"calibration": {"gemm_bf16_fraction": 0}},
            "gemm_bf16_fraction 0, but the time model divides by it",
        ),
        ({"calibration": {"ep_overlap_hidden": 1.5}}, "ep_overlap_hidden 1.5, but it is a share: at most 1"),
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
