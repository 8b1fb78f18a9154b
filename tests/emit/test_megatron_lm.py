"""Command lines and scripts of Megatron-LM: its defaults, its model, and as much of the shell as scripts need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mbsolve.emit.formats import Given
from mbsolve.emit.script import calls, unknown_in
from mbsolve.errors import InputError
from mbsolve.judge.cases import Case, read_cases
from mbsolve.models.card import load_model

MODEL = (
    "--num-layers 8 --hidden-size 1024 --num-attention-heads 16 --vocab-size 32000 --bf16 --seq-length 2048"
)
QWEN = """--num-layers 48 --hidden-size 2048 --ffn-hidden-size 6144 --num-attention-heads 32 --kv-channels 128
--group-query-attention --num-query-groups 4 --vocab-size 151936 --swiglu --normalization RMSNorm --disable-bias-linear
--untie-embeddings-and-output-weights --position-embedding-type rope --qk-layernorm --num-experts 128
--moe-router-topk 8 --moe-ffn-hidden-size 768 --moe-aux-loss-coeff 0.001 --bf16 --seq-length 4096"""
DSV3 = """--num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432 --num-attention-heads 128 --vocab-size 129280
--multi-latent-attention --q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64
--v-head-dim 128 --num-experts 256 --moe-router-topk 8 --moe-ffn-hidden-size 2048 --moe-layer-freq '([0]*3+[1]*58)'
--moe-shared-expert-intermediate-size 2048 --moe-router-num-groups 8 --moe-router-group-topk 4
--moe-router-score-function sigmoid --moe-aux-loss-coeff 1e-4 --mtp-num-layers 1 --swiglu --normalization RMSNorm
--disable-bias-linear --untie-embeddings-and-output-weights --position-embedding-type rope --qk-layernorm --bf16"""


def case_of(path: Path, text: str, given: Given | None = None) -> Case:
    file = path / "run.sh"
    file.write_text(text, encoding="utf-8")
    (case,) = read_cases(file, given)
    return case


def call(path: Path, flags: str, given: Given | None = None) -> Case:
    return case_of(path, f"torchrun --nproc-per-node 8 pretrain_gpt.py {MODEL} {flags}", given)


def refusal(path: Path, text: str, given: Given | None = None) -> str:
    with pytest.raises(InputError) as caught:
        case_of(path, text, given)
    said = str(caught.value)
    assert "\n" not in said and said.endswith((".", "?")) and "run.sh" in said
    return said


def test_the_defaults_are_those_of_the_program(tmp_path: Path) -> None:
    case = call(tmp_path, "--tensor-model-parallel-size 2 --num-experts 4 --micro-batch-size 2")
    assert case.job.target == "megatron-lm"
    assert (case.plan.tp, case.plan.etp, case.plan.sequence_parallel) == (2, 2, False)
    assert case.plan.dispatcher == "allgather"
    assert case.job.gbs == 8
    said = case.job.settings
    assert not said.distributed_optimizer and not said.overlap_grad_reduce and not said.permute_fusion
    assert said.rope_fusion and said.grad_accumulation_fusion
    model = case.job.model
    assert (model.ffn_hidden_size, model.moe_ffn_hidden_size, model.moe_topk) == (4096, 4096, 2)
    assert model.tie_embeddings and model.linear_bias and model.norm_bias and not model.gated_mlp


FLAGS: list[tuple[str, dict[str, Any]]] = [
    ("--sequence-parallel --tensor-model-parallel-size=4", {"tp": 4, "sequence_parallel": True}),
    (
        "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2",
        {"pp": 2, "vpp": 2},
    ),
    ("--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1", {"pp": 2, "vpp": 4}),
    ("--pipeline-model-parallel-layout Et*4|t*4L", {"pipeline_layout": "Et*4|t*4L"}),
    (
        "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et*2|t*2|t*2|t*2L",
        {"pp": 2, "vpp": 2, "pipeline_layout": "Et*2|t*2|t*2|t*2L"},
    ),
    ("--decoder-first-pipeline-num-layers 3", {"first_stage_layers": 3}),
    (
        "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1"
        + " --account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split",
        {"pp": 2, "vpp": 5, "embedding_in_split": True, "loss_in_split": True},
    ),
    (
        "--recompute-granularity selective --recompute-modules core_attn mlp",
        {"recompute_modules": ("core_attn", "mlp")},
    ),
    ("--recompute-activations", {"recompute_granularity": "selective", "recompute_modules": ("core_attn",)}),
    (
        "--num-experts 8 --moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep",
        {"dispatcher": "hybridep"},
    ),
    ("--num-experts 8 --moe-token-dispatcher-type flex", {"dispatcher": "deepep"}),
    ("--cuda-graph-impl local --cuda-graph-scope full_iteration", {"cuda_graph_impl": "full_iteration"}),
    ("--optimizer-cpu-offload --use-precision-aware-optimizer", {"optimizer_offload_fraction": 1.0}),
    ("--optimizer-cpu-offload --optimizer-offload-fraction 0.25", {"optimizer_offload_fraction": 0.25}),
    ("--cpu-offloading-num-layers 2", {"activation_offload_layers": 2}),
    (
        "--fine-grained-activation-offloading --offload-modules core_attn",
        {"fine_grained_offload_modules": ("core_attn",)},
    ),
    ("--micro-batch-size 2 --micro-batch-size 4", {"mbs": 4}),
]


@pytest.mark.parametrize(("flags", "plan"), FLAGS)
def test_flags(flags: str, plan: dict[str, Any], tmp_path: Path) -> None:
    found = call(tmp_path, f"'{flags}'" if "|" in flags and "'" in flags else flags.replace("|", "\\|")).plan
    assert {name: getattr(found, name) for name in plan} == plan


@pytest.mark.parametrize(
    ("flags", "precision"),
    [
        ("", "bf16"),
        ("--fp8-format hybrid", "fp8_delayed"),
        ("--fp8-format hybrid --fp8-recipe tensorwise", "fp8_cs"),
        ("--fp8-format e4m3 --fp8-recipe blockwise --fp8-param-gather", "fp8_block"),
    ],
)
def test_precisions(flags: str, precision: str, tmp_path: Path) -> None:
    job = call(tmp_path, flags).job
    assert job.precision == precision
    assert job.settings.fp8_param == ("--fp8-param-gather" in flags)


@pytest.mark.parametrize(("name", "flags"), [("qwen3-30b-a3b", QWEN), ("dsv3", DSV3)])
def test_a_known_model_is_found_in_its_flags(name: str, flags: str, tmp_path: Path) -> None:
    given = Given(model=name, gpus=256, seq_len=4096)
    assert case_of(tmp_path, flags, given).job.model == load_model(name)
    alone = case_of(tmp_path, flags, Given(gpus=256, seq_len=4096)).job.model
    card = load_model(name)
    apart = {"name", "title", "aliases", "sources", "published_params", "tokens_per_batch"}
    differing = {field for field in type(card).model_fields if getattr(card, field) != getattr(alone, field)}
    assert differing <= apart | {"head_dim"}
    other = refusal(tmp_path, flags, Given(model="mixtral-8x7b", gpus=256, seq_len=4096))
    assert "num_layers is" in other and "which --model names" in other


SCRIPT = """#!/bin/bash
#SBATCH --nodes=4
set -euo pipefail
GPUS=8; NODES=${NODES:-4}
WORLD=$((GPUS * $NODES))
if [ -n "${FAST:-}" ]; then
    TP=1
fi
PP=2
A=(--micro-batch-size 1 --global-batch-size "$((WORLD * 4))"  # a comment
   --pipeline-model-parallel-size ${PP})
A+=(--overlap-grad-reduce)
B="
  --use-distributed-optimizer \\
  --lr 1e-4
"
cat <<EOF > note
pretrain_gpt.py is not called here
EOF
echo "pretrain_gpt.py ${A[@]}"
CMD="torchrun --nproc_per_node=$GPUS --nnodes=$NODES pretrain_gpt.py %s ${A[*]} $B %s"
srun -N $NODES $CMD 2>&1 | tee log
"""


def test_a_script(tmp_path: Path) -> None:
    case = case_of(tmp_path, SCRIPT % (MODEL, "--data-path $DATA"))
    assert (case.job.gpus, case.job.gpus_per_node, case.job.gbs) == (32, 8, 128)
    assert case.plan.pp == 2
    assert case.job.settings.overlap_grad_reduce and case.job.settings.distributed_optimizer
    assert case.told == ("read as a Megatron-LM command line", "2 other options were passed over")


def test_a_script_in_a_word(tmp_path: Path) -> None:
    case = case_of(
        tmp_path, f"RUN='torchrun pretrain_gpt.py {MODEL} --micro-batch-size 2'\nsrun bash -c \"$RUN\""
    )
    assert case.plan.mbs == 2


def test_a_variable_that_is_not_known_matters_where_it_is_read(tmp_path: Path) -> None:
    said = refusal(tmp_path, SCRIPT % (MODEL, "--tensor-model-parallel-size $TP"))
    assert "--tensor-model-parallel-size is set by $TP, but the file does not say its value" in said
    case = case_of(tmp_path, SCRIPT % (MODEL, "--bf16 $EXTRA"))
    assert "$EXTRA was ignored: what it holds is not in the file" in case.told
    open_nodes = f"torchrun --nproc-per-node 8 --nnodes $N pretrain_gpt.py {MODEL}"
    assert "gpus" in case_of(tmp_path, open_nodes).unknown
    assert case_of(tmp_path, open_nodes, Given(gpus=16)).job.gpus == 16


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--tensor_model_parallel_size 2", "did you mean '--tensor-model-parallel-size'?"),
        ("--num-layer 2", "did you mean '--num-layers'?"),
        ("--num-layers", "--num-layers has no value"),
        ("--num-layers 8 9", "--num-layers takes one value, but '9' follows it"),
        ("--sequence-parallel yes", "--sequence-parallel takes no value"),
        ("--num-layers-per-virtual-pipeline-stage 3", "must divide the layers"),
        ("--num-layers abc", "num_layers is 'abc'"),
        ("--num-experts 4 --moe-layer-freq x", "moe_layer_freq is 'x'"),
        ("'", "a quote is not closed"),
        ("; torchrun pretrain_gpt.py --num-layers 2", "trains 2 times"),
    ],
)
def test_a_wrong_flag_is_one_sentence(flags: str, said: str, tmp_path: Path) -> None:
    assert said in refusal(tmp_path, f"torchrun pretrain_gpt.py {MODEL} {flags}")


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ("--use-megatron-fsdp", "use_megatron_fsdp"),
        ("--optimizer muon", "optimizer"),
        ("--enable-zero-bubble", "enable_zero_bubble"),
        ("--num-experts 4 --moe-layer-freq 2", "moe_layer_freq"),
        ("--num-experts 4 --moe-expert-capacity-factor 1.0", "moe_expert_capacity_factor"),
        ("--inference-dynamic-batching", "inference_dynamic_batching"),
    ],
)
def test_what_is_not_modelled_is_told(flags: str, name: str, tmp_path: Path) -> None:
    from mbsolve.judge.answers import verdict

    assert any(name in text for text in verdict(call(tmp_path, flags)).told)


def test_without_tensor_parallelism_sequences_are_not_parallel(tmp_path: Path) -> None:
    case = call(tmp_path, "--sequence-parallel")
    assert not case.plan.sequence_parallel
    assert any(text.startswith("sequence_parallel was read: off") for text in case.told)


def test_a_vocabulary_that_is_not_stated_is_told(tmp_path: Path) -> None:
    flags = MODEL.replace("--vocab-size 32000", "")
    case = case_of(tmp_path, f"torchrun --nproc-per-node 8 pretrain_gpt.py {flags}")
    assert any(text.startswith("vocab_size was read: unknown") for text in case.told)


def test_a_model_without_its_size_is_asked_for(tmp_path: Path) -> None:
    flags = "pretrain_gpt.py --bf16 --seq-length 4096 --use-checkpoint-args"
    assert "name it with --model" in refusal(tmp_path, flags)
    assert case_of(tmp_path, flags, Given(model="llama3-8b", gpus=8)).job.model == load_model("llama3-8b")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A=x; run $A ${A}y \"$A z\" '$A'", ["run", "x", "xy", "x z", "$A"]),
        ("A='x y'\nrun $A \"$A\"", ["run", "x", "y", "x y"]),
        ('A=(1 2)\nrun "${A[@]}" $A', ["run", "1", "2", "1"]),
        ("run ${B:-4} $((2*(3+4)))", ["run", "4", "14"]),
        ("run a\\ b c\\\n d # e", ["run", "a b", "c", "d"]),
        ("export A=1 B=2; run $A$B", ["run", "12"]),
        ("A=1\nfor i in 1 2; do\n run $A\ndone", ["run", "1"]),
        ("run a > f 2>&1 < g", ["run", "a"]),
        ("C=1 run a | tee b", ["run", "a"]),
        ('A=x\nif [ "$A" == "x" ]; then B=1; else B=2; fi\nrun $B', ["run", "1"]),
        (
            "A=x\nif [[ $A != x ]]; then\n B=1\nelif [[ $A = x ]]; then\n B=2\nelse\n B=3\nfi\nrun $B",
            ["run", "2"],
        ),
        ("A=3\nB=0\nif [ $A -gt 2 ]; then B=1; fi\nrun $B", ["run", "1"]),
        ("A=3\nif [ $A -gt 5 ]; then run 1; else run 2; fi", ["run", "2"]),
        ('A=()\nif [ -z "" ]; then A+=("--x 1"); fi\nrun ${A[@]}', ["run", "--x", "1"]),
        ("run ${A:-\"5\"} ${B-'6'}", ["run", "5", "6"]),
    ],
)
def test_words_of_the_shell(text: str, words: list[str]) -> None:
    (found,) = calls(text, lambda word: word == "run")
    assert list(found.words) == words


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("run $A", "A"),
        ("run $(date)", "command-output"),
        ("if true; then A=1; fi\nrun $A", "A"),
        ("for A in 1 2; do run $A; done", "A"),
        ('B=1\nif [ "$B" = 1 ] || [ -d x ]; then A=1; fi\nrun $A', "A"),
        ("case $B in 1) A=1 ;; *) A=2 ;; esac\nrun $A", "A"),
        ("if [ -f x ]; then A=1; elif [ 1 = 1 ]; then A=2; fi\nrun $A", "A"),
        ("A=1\n[ -z x ] && A=2\nrun $A", "A"),
        ("run ${A%.*}", "A"),
        ("run $1", "1"),
    ],
)
def test_what_the_shell_would_have_to_run_is_not_known(text: str, name: str) -> None:
    (found,) = calls(text, lambda word: word == "run")
    assert unknown_in(found.words[1]) == name


def test_variables_cannot_grow_without_end() -> None:
    text = "A=xxxxxxxxxx\n" + "".join("A=$A$A$A\n" for _ in range(60))
    with pytest.raises(InputError, match="without end"):
        calls(text, lambda word: word == "run")
