"""Random jobs and plans, legal or not, for what is written to be read back."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from mbsolve.constraints.job import Job
from mbsolve.constraints.vocabulary import (
    GRAPH_IMPLS,
    GRAPH_SCOPES,
    OFFLOAD_MODULES,
    PRECISIONS,
    RECOMPUTE_MODULES,
    Plan,
    Settings,
)
from mbsolve.reading import make_job


def some(words: tuple[str, ...]) -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(st.sampled_from(words), unique=True, max_size=3).map(tuple)


RECOMPUTE: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.just({}),
    st.fixed_dictionaries(
        {"recompute_granularity": st.just("selective"), "recompute_modules": some(RECOMPUTE_MODULES)}
    ),
    st.fixed_dictionaries(
        {
            "recompute_granularity": st.just("full"),
            "recompute_method": st.sampled_from(("uniform", "block")),
            "recompute_num_layers": st.integers(1, 9),
        }
    ),
)
SIZE = st.sampled_from((1, 2, 4, 8, 16))
PLANS = st.builds(
    lambda recompute, **fields: Plan(**fields, **recompute),
    RECOMPUTE,
    **dict.fromkeys(("tp", "cp", "pp", "vpp", "ep", "etp", "mbs"), SIZE),
    sequence_parallel=st.booleans(),
    pipeline_layout=st.sampled_from((None, "Et|(tt|)*30mL", "Et*3|t*58,m|L")),
    first_stage_layers=st.sampled_from((None, 3)),
    last_stage_layers=st.sampled_from((None, 5)),
    embedding_in_split=st.booleans(),
    loss_in_split=st.booleans(),
    dispatcher=st.sampled_from(("allgather", "alltoall", "deepep", "hybridep")),
    ep_overlap=st.booleans(),
    delay_wgrad=st.booleans(),
    precision_aware_optimizer=st.booleans(),
    optimizer_offload_fraction=st.one_of(st.just(0.0), st.floats(0.01, 1.0)),
    activation_offload_layers=st.integers(0, 9),
    fine_grained_offload_modules=some(OFFLOAD_MODULES),
    cuda_graph_impl=st.sampled_from(GRAPH_IMPLS),
    cuda_graph_scope=some(GRAPH_SCOPES),
).filter(
    # No law allows these without a rank capacity, which is completed then.
    lambda plan: plan.cuda_graph_impl != "full_iteration" or plan.dispatcher != "hybridep"
)
SETTINGS = st.builds(
    Settings,
    **dict.fromkeys(
        (
            *("fp8_param", "overlap_grad_reduce", "overlap_param_gather", "tp_comm_overlap"),
            *("shared_expert_overlap", "permute_fusion", "op_fuser", "rope_fusion", "distributed_optimizer"),
            *("fp8_output_proj", "grad_accumulation_fusion", "router_padding"),
        ),
        st.booleans(),
    ),
    grad_dtype=st.sampled_from(("fp32", "bf16")),
    main_param_dtype=st.sampled_from(("fp32", "fp16")),
    moment_dtype=st.sampled_from(("fp32", "bf16", "fp16")),
    cp_comm_type=st.sampled_from(("p2p", "a2a", "all_gather", "a2a+p2p")),
    attention_dropout=st.sampled_from((0.0, 0.1)),
    hidden_dropout=st.sampled_from((0.0, 0.1)),
    make_vocab_size_divisible_by=st.sampled_from((1, 64, 128)),
    expert_rank_capacity=st.sampled_from((None, 1.5)),
)


def jobs(model: str, target: str = "bridge") -> st.SearchStrategy[Job]:
    return st.builds(
        lambda precision, changed, gbs: make_job(
            model=model,
            hardware="gb200",
            gpus=256,
            seq_len=8192,
            gbs=gbs,
            precision=precision,
            target=target,
            settings=changed,
        ),
        st.sampled_from([p for p in PRECISIONS if p != "fp8_block"]),
        SETTINGS,
        st.integers(1, 4096),
    )
