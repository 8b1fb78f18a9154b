"""Job files: every spelling means the same, what is absent is completed and told, nonsense is one sentence."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mbsolve.constraints.vocabulary import OFFLOAD_MODULES, RECOMPUTE_MODULES, Plan
from mbsolve.emit.jobwriter import job_file
from mbsolve.errors import InputError
from mbsolve.judge.answers import verdict
from mbsolve.judge.cases import Case, read_cases
from mbsolve.judge.completion import completed_text
from mbsolve.models.card import load_model
from mbsolve.models.partial import PartialModel, UnknownDimensionError
from mbsolve.reading import make_job

BASE: dict[str, Any] = {"model": "qwen3-30b-a3b", "hardware": "h100", "gpus": 64, "seq_len": 4096, "gbs": 512}


def cases_of(path: Path, raw: object) -> list[Case]:
    """The cases of a file with this content."""
    file = path / "job.yaml"
    file.write_text(yaml.safe_dump(raw, sort_keys=False))
    return read_cases(file)


def case_of(path: Path, **changes: Any) -> Case:
    (case,) = cases_of(path, {**BASE, **changes})
    return case


def refusal(path: Path, raw: object) -> str:
    with pytest.raises(InputError) as caught:
        cases_of(path, raw)
    text = str(caught.value)
    assert "\n" not in text and text.rstrip().endswith((".", "?"))
    return text


SAME: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"tp": 2}, {"tensor_model_parallel_size": 2}),
    ({"pp": 4, "vpp": 3}, {"pipeline_model_parallel_size": 4, "virtual_pipeline_model_parallel_size": 3}),
    ({"cp": 2}, {"context_parallel_size": 2}),
    ({"ep": 8, "etp": 2}, {"expert_model_parallel_size": 8, "expert_tensor_parallel_size": 2}),
    ({"sequence_parallel": True, "tp": 2}, {"sp": True, "tp": 2}),
    ({"pipeline_layout": "Et*24|t*24L"}, {"layout": "Et*24|t*24L"}),
    ({"pipeline_layout": "Et*24|t*24L"}, {"pp_layout": "Et*24|t*24L"}),
    ({"first_stage_layers": 20}, {"num_layers_in_first_pipeline_stage": 20}),
    ({"last_stage_layers": 20}, {"num_layers_in_last_pipeline_stage": 20}),
    (
        {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 3},
        {"recompute": {"granularity": "full", "method": "block", "num_layers": 3}},
    ),
    (
        {"recompute_granularity": "selective", "recompute_modules": ["moe", "layernorm"]},
        {"recompute": {"granularity": "selective", "modules": ["moe", "layernorm"]}},
    ),
    ({}, {"recompute": None}),
    ({}, {"recompute": "none"}),
    ({}, {"recompute": {"granularity": "none", "method": "none"}}),
    ({"recompute_granularity": "selective"}, {"recompute": "selective"}),
    (
        {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
        {"recompute": "full"},
    ),
    ({"dispatcher": "deepep"}, {"dispatcher": "flex"}),
    ({"activation_offload_layers": 1}, {"cpu_offloading": True}),
    ({}, {"moe_grouped_gemm": True, "attention_backend": "flash", "moe_router_dtype": "fp32"}),
    ({"dispatcher": "deepep"}, {"dispatcher": "flex", "flex_backend": "deepep"}),
    (
        {"dispatcher": "hybridep"},
        {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "hybridep"},
    ),
    ({"ep_overlap": True}, {"overlap_moe_expert_parallel_comm": True}),
    ({"delay_wgrad": True}, {"delay_wgrad_compute": True}),
    ({"optimizer_offload_fraction": 0.5}, {"optimizer_cpu_offload": True, "optimizer_offload_fraction": 0.5}),
    ({"optimizer_offload_fraction": 1.0}, {"optimizer_cpu_offload": True}),
    ({}, {"optimizer_cpu_offload": False, "optimizer_offload_fraction": 0.5}),
    ({"optimizer_offload_fraction": 0.25}, {"opt_offload": True, "opt_offload_fraction": 0.25}),
    ({"activation_offload_layers": 4}, {"cpu_offloading": True, "cpu_offloading_num_layers": 4}),
    ({"activation_offload_layers": 4}, {"cpu_offload": True, "cpu_offload_layers": 4}),
    ({}, {"cpu_offloading": False, "cpu_offloading_num_layers": 4}),
    (
        {"fine_grained_offload_modules": ["moe_act"]},
        {"fine_grained_activation_offloading": True, "offload_modules": ["moe_act"]},
    ),
    (
        {"fine_grained_offload_modules": ["moe_act"]},
        {"fine_grained_activation_offloading": True, "fg_offload_modules": ["moe_act"]},
    ),
    ({}, {"fine_grained_activation_offloading": False, "offload_modules": None}),
    (
        {"cuda_graph_impl": "transformer_engine", "cuda_graph_scope": ["attn"]},
        {"cg_impl": "transformer_engine", "cg_modules": ["attn"]},
    ),
    ({"cuda_graph_scope": ["attn"]}, {"cuda_graph_modules": ["attn"]}),
    ({"precision_aware_optimizer": True}, {"use_precision_aware_optimizer": True}),
    ({"shared_expert_overlap": True}, {"moe_shared_expert_overlap": True}),
    ({"distributed_optimizer": False}, {"dist_opt": False}),
]


@pytest.mark.parametrize(("ours", "theirs"), SAME, ids=lambda fields: ",".join(fields) or "nothing")
def test_spellings_mean_the_same(ours: dict[str, Any], theirs: dict[str, Any], tmp_path: Path) -> None:
    a, b = case_of(tmp_path, config=ours), case_of(tmp_path, config=theirs)
    assert (a.plan, a.job) == (b.plan, b.job)


def test_state_dtypes(tmp_path: Path) -> None:
    state = {"param": "bf16", "grad": "bf16", "main_param": "fp32", "exp_avg": "bf16", "exp_avg_sq": "bf16"}
    case = case_of(tmp_path, state_dtypes=state, config={})
    assert (case.job.settings.grad_dtype, case.job.settings.moment_dtype) == ("bf16", "bf16")
    assert case.plan.precision_aware_optimizer
    assert any("precision_aware_optimizer" in text for text in case.told)


def test_files_of_many(tmp_path: Path) -> None:
    config = {"candidates": {"a": {"tp": 2}, "b": {"tp": 4}}}
    many = cases_of(tmp_path, {"cases": [{**BASE, "id": "X"}, {**BASE, "id": "Y", "config": config}]})
    assert [c.name for c in many] == ["X", "Y.a", "Y.b"]
    assert [c.plan.tp for c in many] == [1, 2, 4]
    assert [c.name for c in cases_of(tmp_path, [BASE, BASE])] == ["1", "2"]
    (free,) = cases_of(tmp_path, {**BASE, "config": {"free": "all"}})
    assert free.skipped


def test_ends_that_count_as_layers(tmp_path: Path) -> None:
    theirs = {"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True}
    ours = {"embedding_in_split": True, "loss_in_split": True}
    a, b = case_of(tmp_path, config=theirs), case_of(tmp_path, config=ours)
    assert a.plan == b.plan and a.plan.embedding_in_split and a.plan.loss_in_split
    assert not case_of(tmp_path, config={name: False for name in theirs}).plan.embedding_in_split


def test_what_is_absent_is_completed_and_told(tmp_path: Path) -> None:
    case = case_of(tmp_path, gbs=None, config={"tp": 2, "pp": 4, "vpp": 3})
    assert case.plan.sequence_parallel and case.plan.etp == 2 and case.plan.mbs == 1
    # 16 Mi tokens of a MoE model; whole rounds of 4 micro-batches on 8 data-parallel ranks.
    assert case.job.gbs == 16 * 2**20 // 4096
    assert {"gbs", "sequence_parallel", "etp", "mbs", "precision"} <= set(case.completed)
    other = case_of(tmp_path, target="megatron-lm", config={"tp": 2})
    assert other.plan.etp == 2


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("sequence_parallel", "maybe", "'maybe', but it must be true or false."),
        ("op_fuser", "perhaps", "'perhaps', but it must be true or false."),
        ("tp", "x", "'x', but it must be a whole number."),
        ("tp", 1.5, "1.5, but it must be a whole number."),
        ("tp", 0, "0, but it must be at least 1."),
        ("optimizer_offload_fraction", "lots", "'lots', but it must be a number."),
        ("recompute_modules", 3, "3, but it must be a list."),
        ("dispatcher", 3, "3, but it must be a word."),
        ("attention_dropout", 1.5, "1.5, but it must be below 1."),
        ("expert_rank_capacity", -1, "-1, but it must be above 0."),
        ("logits_copies", 9, "9, but it must be at most 3."),
    ],
)
def test_a_wrong_value_is_a_sentence_of_ours(tmp_path: Path, name: str, value: Any, said: str) -> None:
    with pytest.raises(InputError, match=re.escape(f"{name} is {said}")):
        case_of(tmp_path, config={name: value})


def test_every_default_that_the_verdict_rests_on_is_completed(tmp_path: Path) -> None:
    """What is stated is not listed; what is not stated is, with the value that was judged."""
    stated = {"tp": 2, "pp": 4, "dispatcher": "deepep", "grad_dtype": "bf16"}
    case = case_of(tmp_path, config=stated)
    judged = {**case.plan.model_dump(), **case.job.settings.model_dump()}
    assert not set(stated) & set(case.completed)
    assert {name: case.completed[name] for name in case.completed if name in judged} == {
        name: judged[name] for name in case.completed if name in judged
    }
    named: dict[str, Any] = {
        "vpp": 1,
        "recompute_granularity": None,
        "cuda_graph_impl": "none",
        "moment_dtype": "fp32",
    }
    named |= {"precision_aware_optimizer": False, "optimizer_offload_fraction": 0.0, "ep_overlap": False}
    assert named.items() <= case.completed.items()
    text = completed_text(case.completed, case.plan)
    assert "vpp=1" in text and "dispatcher" not in text and "grad_dtype" not in text
    assert "; off: recompute, precision-aware optimizer, optimizer offload, CUDA graphs; " in text
    assert case_of(tmp_path, config={}).completed["dispatcher"] == "alltoall"
    dense = case_of(tmp_path, model="llama3-8b", config={"tp": 2})
    assert not {"dispatcher", "expert_rank_capacity", "fp8_param"} & set(dense.completed)
    assert "vpp" not in completed_text(dense.completed, dense.plan)


def test_the_virtual_stages_of_a_layout_are_completed_as_it_says(tmp_path: Path) -> None:
    config = {"pp": 2, "pipeline_layout": "Et*8|t*8|t*8|t*8L"}
    assert case_of(tmp_path, model="llama3-8b", config=config).completed["vpp"] == 2


@pytest.mark.parametrize("name", ["gpus", "seq_len"])
def test_a_size_without_a_default_stays_unknown(name: str, tmp_path: Path) -> None:
    case = case_of(tmp_path, **{name: None, "gbs": None})
    assert case.unknown == {name, "gbs"}


def test_a_default_batch_is_whole(tmp_path: Path) -> None:
    case = case_of(tmp_path, seq_len=4112, gbs=None, config={"tp": 2, "mbs": 3})
    assert case.job.gbs % (32 * 3) == 0


def test_models(tmp_path: Path) -> None:
    assert case_of(tmp_path, model={"name": "deepseek_v3"}).job.model == load_model("dsv3")
    cut = case_of(tmp_path, model={"name": "dsv3", "num_layers": 9}).job.model
    assert (cut.num_layers, cut.hidden_size) == (9, load_model("dsv3").hidden_size)
    no_mtp = case_of(tmp_path, model="dsv3", config={"mtp_layers": 0}).job.model
    assert no_mtp.mtp_num_layers == 0
    own = {
        "name": "own",
        "num_layers": 4,
        "hidden": 1024,
        "heads": 16,
        "kv_heads": 4,
        "ffn": 4096,
        "vocab": 32000,
    }
    case = case_of(tmp_path, model=own)
    assert case.job.model.head_dim == 64 and case.completed["model.head_dim"] == 64
    shared = {**own, "experts": 8, "topk": 2, "moe_ffn": 512, "shared_experts": 2}
    assert case_of(tmp_path, model=shared).job.model.shared_expert_ffn_hidden_size == 1024


def test_a_partial_model_answers_only_what_is_known(tmp_path: Path) -> None:
    raw = {
        "models": {"half": {"num_layers": 80, "dims": "layers only"}},
        "cases": [{**BASE, "model": "half"}],
    }
    (case,) = cases_of(tmp_path, raw)
    assert isinstance(case.job.model, PartialModel)
    assert len(case.job.model.layers()) == 80
    with pytest.raises(UnknownDimensionError, match="hidden_size of half"):
        _ = case.job.model.hidden_size


def test_machines(tmp_path: Path) -> None:
    any_gpu = case_of(tmp_path, hardware={"gpu": "any", "hbm_gb": None, "nvlink_domain": 8})
    assert any_gpu.completed["hardware"] == "h100"
    assert case_of(tmp_path, hardware={"gpu": "H100-80GB", "hbm_gb": 80}).job.machine.hbm_bytes > 84e9
    larger = case_of(tmp_path, hardware={"gpu": "h100", "hbm_gb": 96, "nvlink_domain": 4}).job.machine
    assert larger.hbm_bytes == 96 * 10**9 and larger.domain_network.gpus == 4


WRONG: list[tuple[object, tuple[str, ...]]] = [
    ({**BASE, "config": {"tpp": 4}}, ("tpp", "did you mean 'tp'")),
    ({**BASE, "modell": "dsv3"}, ("modell", "did you mean 'model'")),
    ({**BASE, "model": "dsv4"}, ("dsv4", "did you mean 'dsv3'")),
    ({**BASE, "model": {"name": "dsv4", "num_layers": 9}}, ("dsv4",)),
    ({**BASE, "model": {"name": "own", "hiden": 5}}, ("hiden", "did you mean 'hidden'")),
    ({**BASE, "model": 5}, ("model is 5",)),
    (
        {**BASE, "model": {"name": "own", "layer_pattern": "XYZ", "num_layers": 3, "hidden": 64}},
        ("symbol 'X'",),
    ),
    ({**BASE, "hardware": "h10"}, ("h10",)),
    ({**BASE, "hardware": {"gpu": "h100", "hbm": 80}}, ("hbm",)),
    ({**BASE, "hardware": {"gpu": "h100", "hbm_gb": -1}}, ("hbm_gb", "-1")),
    ({**BASE, "hardware": {"gpu": "h100", "hbm_gb": float("inf")}}, ("hbm_gb", "inf")),
    ({**BASE, "hardware": {"gpu": "h100", "nvlink_domain": 0.5}}, ("nvlink_domain", "0.5")),
    ({**BASE, "gpus": 10**8}, ("gpus is 100000000", "at most")),
    ({**BASE, "gpus": "many"}, ("gpus", "many")),
    ({**BASE, "gpus": 0}, ("gpus is 0",)),
    ({**BASE, "precision": "fp9"}, ("fp9",)),
    ({**BASE, "config": {"tp": 0}}, ("tp is 0",)),
    ({**BASE, "config": {"tp": [2]}}, ("tp is",)),
    ({**BASE, "config": {"tp": 2, "tensor_model_parallel_size": 4}}, ("tp is given twice", "2", "4")),
    ({**BASE, "config": {"recompute": "fulll"}}, ("recompute is 'fulll'",)),
    ({**BASE, "config": {"recompute": {"granularty": "full"}}}, ("granularty", "granularity")),
    ({**BASE, "config": {"optimizer_cpu_offload": "yes"}}, ("optimizer_cpu_offload is 'yes'",)),
    ({**BASE, "config": 3}, ("config must be a mapping",)),
    ({**BASE, "config": {"grad_dtype": "fp8"}}, ("grad_dtype", "fp8")),
    ({**BASE, "state_dtypes": {"grad": "int8"}}, ("int8",)),
    ({**BASE, "state_dtypes": {"gard": "bf16"}}, ("gard", "grad")),
    ({**BASE, "config": {"candidates": 3}}, ("candidates",)),
    ({"gpus": 8}, ("lacks the field 'model'",)),
    ({"cases": 3}, ("cases must be a list",)),
    ([], ("holds no job",)),
    ([3], ("job 1 must be a mapping",)),
    ("text", ("job 1 must be a mapping",)),
]


@pytest.mark.parametrize(("raw", "words"), WRONG, ids=lambda value: str(value)[-60:])
def test_nonsense_is_one_sentence(raw: object, words: tuple[str, ...], tmp_path: Path) -> None:
    text = refusal(tmp_path, raw)
    assert all(word in text for word in words), text


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "cut.yaml").write_text("model: {name: dsv3")
    (tmp_path / "cut.json").write_text('{"model": ')
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    for name in ("cut.yaml", "cut.json", "bytes.yaml", "absent.yaml"):
        with pytest.raises(InputError) as caught:
            read_cases(tmp_path / name)
        assert name in str(caught.value) and "\n" not in str(caught.value)


def modules(known: tuple[str, ...]) -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(st.sampled_from(known), unique=True, max_size=3).map(tuple)


PLANS = st.builds(
    Plan,
    tp=st.sampled_from([1, 2, 4]),
    pp=st.sampled_from([1, 2]),
    cp=st.sampled_from([1, 2]),
    mbs=st.integers(1, 4),
    sequence_parallel=st.booleans(),
    pipeline_layout=st.sampled_from([None, "Et*24|t*24L"]),
    first_stage_layers=st.sampled_from([None, 20]),
    recompute_granularity=st.sampled_from([None, "selective"]),
    recompute_modules=modules(RECOMPUTE_MODULES),
    dispatcher=st.sampled_from(["alltoall", "deepep", "hybridep", "allgather"]),
    optimizer_offload_fraction=st.sampled_from([0.0, 0.25, 1.0]),
    fine_grained_offload_modules=modules(OFFLOAD_MODULES),
    cuda_graph_impl=st.sampled_from(["none", "local", "full_iteration"]),
)


@settings(max_examples=60, deadline=None)
@given(plan=PLANS, margin=st.sampled_from([0.0, 0.05]), grad=st.sampled_from(["fp32", "bf16"]))
def test_what_is_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, plan: Plan, margin: float, grad: str
) -> None:
    """A job and a plan survive the way through a file, whatever the model and the machine are."""
    # No law allows these without a rank capacity, which is completed then.
    assume(plan.cuda_graph_impl != "full_iteration" or plan.dispatcher != "hybridep")
    for model in (load_model("qwen3-30b-a3b"), load_model("dsv3").model_copy(update={"num_layers": 9})):
        job = make_job(
            model=model,
            hardware="gb200",
            gpus=64,
            seq_len=4096,
            gbs=256,
            margin=margin,
            settings={"grad_dtype": grad},
        )
        file = tmp_path_factory.mktemp("job") / "job.yaml"
        file.write_text(job_file(job, plan))
        (case,) = read_cases(file)
        assert case.plan == plan
        assert case.job.model_copy(update={"model": job.model}) == job
        apart = {"sources", "published_params"}
        assert case.job.model.model_dump(exclude=apart) == job.model.model_dump(exclude=apart)
        assert not case.unknown


def test_a_stated_memory_is_the_cards_own_or_taken_as_it_is(tmp_path: Path) -> None:
    def bytes_of(stated: float) -> int:
        return case_of(tmp_path, hardware={"gpu": "h100", "hbm_gb": stated}).job.machine.hbm_bytes

    assert bytes_of(80) == case_of(tmp_path).job.machine.hbm_bytes
    assert bytes_of(77) == 77 * 10**9 and bytes_of(94) == 94 * 10**9


def test_what_a_plan_speaks_against_is_not_completed(tmp_path: Path) -> None:
    raw = {
        **BASE,
        "model": {"name": "my-moe", "dims": "unknown"},
        "config": {"ep": 8, "layout": "Et|tmL", "pp": 2},
    }
    (case,) = cases_of(tmp_path, raw)
    for field in ("num_experts", "mtp_num_layers", "ffn_hidden_size"):
        with pytest.raises(UnknownDimensionError):
            getattr(case.job.model, field)
    (dense,) = cases_of(tmp_path, {**raw, "config": {}})
    assert dense.job.model.num_experts is None and "model.num_experts" in dense.completed


def test_shared_experts_of_a_card_can_be_changed(tmp_path: Path) -> None:
    none = case_of(tmp_path, model={"name": "dsv3", "shared_experts": 0}).job.model
    two = case_of(tmp_path, model={"name": "dsv3", "shared_experts": 2}).job.model
    assert none.shared_expert_ffn_hidden_size is None and two.shared_expert_ffn_hidden_size == 4096


def test_numbers_are_read_before_anything_follows_from_them(tmp_path: Path) -> None:
    whole = case_of(tmp_path, config={"tp": 2, "ep": 8})
    for same in ("2", 2.0):
        assert case_of(tmp_path, config={"tp": same, "ep": 8}).plan == whole.plan
    assert whole.plan.sequence_parallel
    assert "tp is True" in refusal(tmp_path, {**BASE, "config": {"tp": True}})


def test_a_format_that_the_machine_lacks_is_a_broken_rule(tmp_path: Path) -> None:
    good, bad = cases_of(tmp_path, [BASE, {**BASE, "precision": "mxfp8"}])
    assert verdict(good).legal
    assert "fp8-recipe-arch" in {v.rule for v in verdict(bad).violations}


def test_dispatchers_must_agree(tmp_path: Path) -> None:
    flex = {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "hybridep"}
    assert case_of(tmp_path, config={**flex, "dispatcher": "hybridep"}).plan.dispatcher == "hybridep"
    assert "given twice" in refusal(tmp_path, {**BASE, "config": {**flex, "dispatcher": "alltoall"}})


def test_one_name_is_a_list_of_one(tmp_path: Path) -> None:
    case = case_of(tmp_path, config={"cuda_graph_impl": "local", "cuda_graph_scope": "attn"})
    assert case.plan.cuda_graph_scope == ("attn",)


def test_moments_have_one_format(tmp_path: Path) -> None:
    text = refusal(tmp_path, {**BASE, "state_dtypes": {"exp_avg": "fp32", "exp_avg_sq": "bf16"}})
    assert "exp_avg" in text and "exp_avg_sq" in text


def test_full_recompute_needs_its_method(tmp_path: Path) -> None:
    case = case_of(tmp_path, config={"recompute": {"granularity": "full"}})
    assert {"recompute-full-needs-method", "recompute-full-needs-layers"} & {
        v.rule for v in verdict(case).violations
    }


def test_a_key_that_stands_twice_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("model: llama3-8b\ngpus: 8\nconfig: {tp: 2, tp: 4}\n")
    with pytest.raises(InputError, match=r"line 3: the key 'tp' stands twice"):
        read_cases(path)
