"""Launchers' files made at random: each is judged, or refused in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mbsolve.emit.configtree import KNOWN
from mbsolve.emit.formats import Given
from mbsolve.emit.passed import MATTERS, REPLACES
from mbsolve.emit.read_megatron import KNOWN as FLAGS
from mbsolve.errors import InputError
from mbsolve.judge.answers import evaluate_case, verdict
from mbsolve.judge.cases import read_cases

MODEL = (
    "--num-layers 8 --hidden-size 1024 --num-attention-heads 16 --vocab-size 32000 --bf16 --seq-length 2048"
)
VALUES = (
    *("1", "2", "4", "8", "true", "false", "null", "none", "", "-1", "0.5", "1e99", "9" * 25, "$X", "x"),
    *(
        "[a,b]",
        "[1",
        '"x',
        "{a:1}",
        "full",
        "selective",
        "flex",
        "deepep",
        "bf16",
        "local",
        "[attn]",
        "Et*3|t*5L",
    ),
)
KEYS = (*KNOWN, "mixed_precision", "comm_overlap", *(f"model.{name}" for name in (*MATTERS, *REPLACES)))
OVERRIDES = st.lists(
    st.builds(
        "{}{}={}".format, st.sampled_from(("", "", "+", "~")), st.sampled_from(KEYS), st.sampled_from(VALUES)
    ),
    min_size=1,
    max_size=5,
).map("\n".join)
CALLS = st.lists(
    st.builds("{} {}".format, st.sampled_from((*FLAGS, "--other")), st.sampled_from(VALUES)), max_size=4
).flatmap(
    lambda flags: st.sampled_from((MODEL, "")).map(
        lambda model: f"torchrun --nproc-per-node 8 pretrain_gpt.py {model} {' '.join(flags)}"
    )
)
SCRIPTS = st.lists(
    st.sampled_from(
        (
            *("$", "${", "}", "(", ")", '"', "'", "`", "\n", " ", "A=", "A", "+=(", "if ", "fi\n", "<<EOF\n"),
            *(
                "EOF",
                "\\",
                "&&",
                "|",
                ">",
                "[@]",
                ":-",
                "$((",
                "))",
                "#",
                ";",
                "echo ",
                "model.x=",
                "é",
                "\t",
            ),
            *("pretrain_gpt.py ", "run_recipe.py ", "--num-layers ", "8 ", "for A in ", "export ", ": "),
        )
    ),
    max_size=40,
).map("".join)
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from((0, 1, 2, 4, 8, -3, 0.5, 1e300, 10**30)),
    st.sampled_from(("flex", "none", "full", "x", "bf16")),
    st.lists(st.sampled_from((0, 1, "attn", "E")), max_size=3),
    st.sampled_from(({"a": 1}, {"_call_": False, "_target_": "torch.bfloat16"}, {"_name_": "attn"})),
)
SIZES = {"num_layers": 8, "hidden_size": 1024, "num_attention_heads": 16, "vocab_size": 32000}


def saved(values: dict[str, object]) -> str:
    tree: dict[str, dict[str, object]] = {"model": dict(SIZES), "train": {}}
    for key, value in values.items():
        section, _, name = key.partition(".")
        tree.setdefault(section, {})[name] = value
    return yaml.safe_dump(tree)


SAVED = st.dictionaries(st.sampled_from(KNOWN), ODD, max_size=6).map(saved)
GIVEN = st.builds(
    Given,
    model=st.sampled_from((None, "dsv3", "llama3-8b")),
    gpus=st.sampled_from((None, 64)),
    seq_len=st.sampled_from((None, 4096)),
)


@pytest.mark.parametrize(
    "texts", [OVERRIDES, CALLS, SCRIPTS, SAVED], ids=["overrides", "calls", "scripts", "saved"]
)
def test_any_file_is_judged_or_refused(
    texts: st.SearchStrategy[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = Path(tmp_path_factory.getbasetemp()) / "odd.txt"

    @settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(text=texts, known=GIVEN)
    def holds(text: str, known: Given) -> None:
        file.write_text(text, encoding="utf-8")
        try:
            cases = read_cases(file, known)
        except InputError as error:
            assert "\n" not in str(error)
            return
        for case in cases:
            said, priced = verdict(case), evaluate_case(case)
            assert said.legal == priced.legal
            said.model_dump_json()
            priced.model_dump_json()

    holds()
