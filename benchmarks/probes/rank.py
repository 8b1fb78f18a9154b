"""One rank of a Megatron-Core training job on one GPU, its collectives faked: memory and time of real steps.

Run by `sweep.py`: the job is the first argument, as JSON; prints READY once its imports are done, waits for a line on
standard input, and prints one line ``RESULT {...}``.
"""

import gc
import json
import os
import pathlib
import sys
import time
import traceback

JOB = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
os.environ["PYTORCH_CUDA_ALLOC_CONF"] = JOB.get("alloc_conf", "expandable_segments:True")
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
os.environ.setdefault("NCCL_GRAPH_REGISTER", "0")
import types

import torch

# Megatron takes the fused accumulation of weight gradients from this extension; the same GEMM is in Transformer Engine.
_fused = types.ModuleType("fused_weight_gradient_mlp_cuda")


def _accumulate(out_dtype):
    def gemm(total_input, grad_output, main_grad):
        from transformer_engine.pytorch.cpp_extensions import general_gemm

        general_gemm(
            total_input,
            grad_output,
            out_dtype=out_dtype,
            layout="NT",
            out=main_grad,
            accumulate=True,
            grad=True,
        )

    return gemm


_fused.wgrad_gemm_accum_fp32 = _accumulate(torch.float32)
_fused.wgrad_gemm_accum_fp16 = _accumulate(torch.bfloat16)
sys.modules["fused_weight_gradient_mlp_cuda"] = _fused

import collectives
import torch.distributed as dist
from clocks import Clocks

if JOB.get("fill", True):
    collectives.install()

from megatron.core import parallel_state as ps
from megatron.core.activations import squared_relu
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.fusions.fused_bias_geglu import quick_gelu
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec, get_gpt_mtp_block_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.num_microbatches_calculator import init_num_microbatches_calculator
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig
from torch.testing._internal.distributed.fake_pg import FakeStore

GIB = 2**30
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.uint8}
ACTIVATIONS = {"silu": torch.nn.functional.silu, "squared_relu": squared_relu, "quick_gelu": quick_gelu}


def gib(n):
    return round(n / GIB, 3)


def model_config(job):
    m = dict(job["model"])
    own = {
        k: m.pop(k, None)
        for k in (
            "multi_latent_attention",
            "vocab_size",
            "tie",
            "rotary_base",
            "hybrid_layer_pattern",
            "activation",
        )
    }
    tp, pp, vpp = job.get("tp", 1), job.get("pp", 1), job.get("vpp")
    c = {
        "bf16": True,
        "params_dtype": torch.bfloat16,
        "pipeline_dtype": torch.bfloat16,
        "add_bias_linear": False,
        "gated_linear_unit": True,
        "activation_func": ACTIVATIONS[own["activation"] or "silu"],
        "normalization": "RMSNorm",
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        "bias_activation_fusion": True,
        "bias_dropout_fusion": True,
        "masked_softmax_fusion": True,
        "apply_rope_fusion": False,
        "persist_layer_norm": True,
        "attention_softmax_in_fp32": False,
        "gradient_accumulation_fusion": True,
        "cross_entropy_loss_fusion": True,
        "cross_entropy_fusion_impl": "te",
        "tensor_model_parallel_size": tp,
        "pipeline_model_parallel_size": pp,
        "virtual_pipeline_model_parallel_size": vpp,
        "context_parallel_size": job.get("cp", 1),
        "expert_model_parallel_size": job.get("ep", 1),
        "expert_tensor_parallel_size": job.get("etp", 1),
        "sequence_parallel": tp > 1,
        "batch_p2p_comm": False,
        "overlap_p2p_comm": vpp is not None,
        "deallocate_pipeline_outputs": True,
        "use_cpu_initialization": False,
        "perform_initialization": job.get("initialise", True),
    }
    if m.get("num_moe_experts"):
        c.update(
            moe_token_dispatcher_type="alltoall",
            moe_grouped_gemm=True,
            moe_router_load_balancing_type="aux_loss",
            moe_router_force_load_balancing=True,
            moe_permute_fusion=True,
            moe_router_dtype="fp32",
            moe_shared_expert_overlap=False,
        )
    c.update(m)
    c.update(job.get("cfg", {}))
    if isinstance(c.get("window_size"), list):
        c["window_size"] = tuple(c["window_size"])
    for name, value in c.items():
        if name.endswith("_dtype") and isinstance(value, str) and name != "moe_router_dtype":
            c[name] = DTYPES[value]
    fp8 = job.get("fp8")
    if fp8:
        c.update(fp8=fp8["format"], fp8_recipe=fp8["recipe"], fp8_param=fp8["fp8_param"])
        if fp8["recipe"] == "delayed":
            c.update(fp8_amax_history_len=1024, fp8_amax_compute_algo="max")
    graph = job.get("graph")
    if graph:
        c.update(cuda_graph_impl=graph["impl"], cuda_graph_modules=graph.get("modules", []))
    return (MLATransformerConfig if own["multi_latent_attention"] else TransformerConfig)(**c), own


def one_chunk(config, own, job, vp):
    pre = ps.is_pipeline_first_stage(ignore_virtual=vp is None, vp_stage=vp)
    post = ps.is_pipeline_last_stage(ignore_virtual=vp is None, vp_stage=vp)
    shared = {
        "pre_process": pre,
        "post_process": post,
        "parallel_output": True,
        "share_embeddings_and_output_weights": bool(own["tie"]),
        "vp_stage": vp,
    }
    if own["hybrid_layer_pattern"]:
        from megatron.core.models.hybrid.hybrid_layer_specs import hybrid_stack_spec
        from megatron.core.models.hybrid.hybrid_model import HybridModel

        return HybridModel(
            config,
            hybrid_stack_spec,
            own["vocab_size"],
            job["seq_len"],
            hybrid_layer_pattern=own["hybrid_layer_pattern"],
            **shared,
        )
    if config.experimental_attention_variant:
        from megatron.core.models.gpt.experimental_attention_variant_module_specs import (
            get_transformer_block_with_experimental_attention_variant_spec as block,
        )

        spec = block(config, vp_stage=vp)
    else:
        spec = get_gpt_decoder_block_spec(config, use_transformer_engine=True, vp_stage=vp)
    mtp = (
        get_gpt_mtp_block_spec(config, spec, use_transformer_engine=True, vp_stage=vp)
        if config.mtp_num_layers
        else None
    )
    return GPTModel(
        config,
        spec,
        own["vocab_size"],
        job["seq_len"],
        position_embedding_type="rope",
        rotary_base=own["rotary_base"] or 10000,
        mtp_block_spec=mtp,
        **shared,
    )


def frames_of(entry):
    """The innermost frames of the libraries that allocated."""
    found = []
    for f in entry.get("frames") or []:
        name = f["filename"]
        for root in ("megatron/core/", "transformer_engine/", "mamba_ssm/", "fla/"):
            if root in name:
                found.append(
                    name.split(root, 1)[1].rsplit("/", 1)[-1] + ":" + str(f["line"]) + ":" + f["name"]
                )
                break
        else:
            if name.endswith("rank.py"):
                found.append("rank:" + str(f["line"]) + ":" + f["name"])
        if len(found) == 5:
            break
    return " < ".join(found)


def grouped(blocks, least=2 << 20):
    groups = {}
    for size, frames in blocks:
        if size >= least:
            g = groups.setdefault((size, frames), [0])
            g[0] += 1
    rows = [
        [round(n[0] * size / 2**20, 2), n[0], round(size / 2**20, 3), frames]
        for (size, frames), n in groups.items()
    ]
    small = sum(s for s, _ in blocks if s < least)
    return [*sorted(rows, reverse=True)[:80], [round(small / 2**20, 2), 0, 0, "small"]]


def explained(begin):
    """Live allocations at the fullest moment after trace entry ``begin``, and now."""
    snap = torch.cuda.memory._snapshot()
    trace = snap["device_traces"][0]
    live, now, best, at = {}, 0, -1, 0
    for i, e in enumerate(trace):
        if e["action"] == "alloc":
            live[e["addr"]] = e["size"]
            now += e["size"]
        elif e["action"] == "free_completed":
            now -= live.pop(e["addr"], 0)
        if i >= begin and now > best:
            best, at = now, i
    live = {}
    for e in trace[: at + 1]:
        if e["action"] == "alloc":
            live[e["addr"]] = (e["size"], frames_of(e))
        elif e["action"] == "free_completed":
            live.pop(e["addr"], None)
    peak = grouped(list(live.values()))
    for e in trace[at + 1 :]:
        if e["action"] == "alloc":
            live[e["addr"]] = (e["size"], frames_of(e))
        elif e["action"] == "free_completed":
            live.pop(e["addr"], None)
    return {"peak_gib": gib(best), "peak": peak, "rest": grouped(list(live.values()))}


def device_used():
    import subprocess

    text = subprocess.run(
        ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    return [
        int(line.split(",")[1])
        for line in text.splitlines()
        if line.split(",")[0].strip() == str(os.getpid())
    ]


def optimizer_bytes(opt):
    """Bytes of the optimizer's tensors on the GPU by name."""
    out, seen = {}, set()

    def add(name, t):
        if isinstance(t, torch.Tensor) and t.is_cuda and t.data_ptr() not in seen and t.numel():
            seen.add(t.data_ptr())
            key = f"{name}:{str(t.dtype)[6:]}"
            n = getattr(t, "_data", t)
            out[key] = out.get(key, 0) + n.numel() * n.element_size()

    for part in getattr(opt, "chained_optimizers", [opt]):
        inner = getattr(part, "optimizer", None)
        for state in getattr(inner, "state", {}).values():
            for name, t in state.items():
                add(name, t)
        for name in ("shard_fp32_from_float16_groups", "shard_fp32_groups"):
            for group in getattr(part, name, None) or []:
                for t in group:
                    add(name, t)
    return {k: gib(v) for k, v in out.items()}


def run(job):
    if job.get("explain"):
        torch.cuda.memory._record_memory_history(
            enabled="all", context="alloc", stacks="python", max_entries=2000000
        )
    pp, tp, cp = job.get("pp", 1), job.get("tp", 1), job.get("cp", 1)
    rank = job.get("pp_rank", 0) * (job["gpus"] // pp)
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=job["gpus"])
    torch.cuda.reset_peak_memory_stats()
    ps.initialize_model_parallel(
        tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=pp,
        virtual_pipeline_model_parallel_size=job.get("vpp"),
        context_parallel_size=cp,
        expert_model_parallel_size=job.get("ep", 1),
        expert_tensor_parallel_size=job.get("etp", 1),
        create_gloo_process_groups=False,
    )
    graph = job.get("graph")
    model_parallel_cuda_manual_seed(1234, te_rng_tracker=bool(graph), use_cudagraphable_rng=bool(graph))
    config, own = model_config(job)
    if graph and graph["impl"] == "transformer_engine":
        torch.cuda.set_stream(torch.cuda.Stream())
    if graph and graph["impl"] == "full_iteration":
        from megatron.core.full_cuda_graph import get_shared_capture_stream

        torch.cuda.set_stream(get_shared_capture_stream())
    mbs, nmb, seq = job.get("mbs", 1), job["num_microbatches"], job["seq_len"]
    init_num_microbatches_calculator(
        rank=rank,
        global_batch_size=mbs * nmb * ps.get_data_parallel_world_size(),
        micro_batch_size=mbs,
        data_parallel_size=ps.get_data_parallel_world_size(),
    )
    chunks = [
        one_chunk(config, own, job, v if job.get("vpp") else None).cuda().bfloat16()
        for v in range(job.get("vpp") or 1)
    ]
    params = sum(p.numel() for c in chunks for p in c.parameters())
    experts = sum(p.numel() for c in chunks for p in c.parameters() if not getattr(p, "allreduce", True))
    weights = torch.cuda.memory_allocated()
    fp8 = job.get("fp8") or {}
    ddp = DistributedDataParallelConfig(
        grad_reduce_in_fp32=job.get("grad_dtype", "fp32") == "fp32",
        overlap_grad_reduce=True,
        overlap_param_gather=True,
        use_distributed_optimizer=True,
        check_for_nan_in_grad=False,
        average_in_collective=True,
        fp8_param_gather=bool(fp8.get("fp8_param")),
    )
    chunks = [DistributedDataParallel(config, ddp, c, disable_bucketing=i > 0) for i, c in enumerate(chunks)]
    for c in chunks:
        c.train()
    o = {k: DTYPES[v] if k.endswith("_dtype") else v for k, v in job.get("opt", {}).items()}
    opt = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam",
            lr=1e-4,
            bf16=True,
            params_dtype=torch.bfloat16,
            use_distributed_optimizer=True,
            clip_grad=1.0,
            weight_decay=0.1,
            **o,
        ),
        chunks,
        use_gloo_process_groups=False,
    )
    # Only the cyclic collector frees the first of two optimizers that the stack builds when it keeps state on the host.
    gc.collect()
    config.finalize_model_grads_func = finalize_model_grads
    config.grad_scale_func = None
    config.no_sync_func = [c.no_sync for c in chunks] if len(chunks) > 1 else chunks[0].no_sync
    static = torch.cuda.memory_allocated()
    clocks = Clocks(os.environ.get("CUDA_VISIBLE_DEVICES", "0")) if job.get("timed") else None
    positions = torch.arange(seq // cp, device="cuda").unsqueeze(0).expand(mbs, -1)

    def batches():
        while True:
            yield {"tokens": torch.randint(0, 30000, (mbs, seq // cp), device="cuda")}

    forward_s = [0.0]

    def forward(it, model, return_schedule_plan=False):
        began = time.perf_counter()
        out = forward_of(it, model, return_schedule_plan)
        forward_s[0] += time.perf_counter() - began
        return out

    def forward_of(it, model, return_schedule_plan):
        tokens = next(it)["tokens"]
        if return_schedule_plan:
            return model.module.build_schedule_plan(tokens, positions, None, labels=tokens) if hasattr(
                model, "module"
            ) else model.build_schedule_plan(tokens, positions, None, labels=tokens), lambda out: (
                out.float().mean(),
                {},
            )
        return model(tokens, positions, None, labels=tokens), lambda out: (out.float().mean(), {})

    fb, helper = get_forward_backward_func(), None
    if graph and graph["impl"] == "full_iteration":
        from megatron.core.full_cuda_graph import FullCudaGraphWrapper

        fb = FullCudaGraphWrapper(fb, cuda_graph_warmup_steps=2)
    if graph and graph["impl"] == "transformer_engine":
        from megatron.core.transformer.cuda_graphs import TECudaGraphHelper

        config.cuda_graph_warmup_steps = 2
        helper = TECudaGraphHelper(
            model=chunks, config=config, seq_length=seq, micro_batch_size=mbs, optimizers=[opt]
        )
    steps, capture = [], None

    def step():
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        t0, forward_s[0] = time.time(), 0.0
        for c in chunks:
            c.zero_grad_buffer()
        opt.zero_grad()
        data = [batches() for _ in chunks] if len(chunks) > 1 else batches()
        fb(
            forward_step_func=forward,
            data_iterator=data,
            model=chunks if len(chunks) > 1 else chunks[0],
            num_microbatches=nmb,
            seq_length=seq,
            micro_batch_size=mbs,
            forward_only=False,
        )
        host = time.time()
        torch.cuda.synchronize()
        t1, pass_peak, before = time.time(), torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        opt.step()
        torch.cuda.synchronize()
        steps.append(
            {
                "fwd_bwd_ms": round((t1 - t0) * 1e3, 2),
                "launch_ms": round((host - t0) * 1e3, 2),
                "forward_launch_ms": round(forward_s[0] * 1e3, 2),
                "fill": collectives.taken(),
                "began": t0,
                "ended": t1,
                "optimizer_ms": round((time.time() - t1) * 1e3, 2),
                "pass_peak": gib(pass_peak),
                "before_optimizer": gib(before),
                "optimizer_peak": gib(torch.cuda.max_memory_allocated()),
                "after": gib(torch.cuda.memory_allocated()),
                "reserved": gib(torch.cuda.memory_reserved()),
            }
        )

    for i in range(job.get("iters", 3)):
        if helper and i == config.cuda_graph_warmup_steps:
            was = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
            torch.cuda.reset_peak_memory_stats()
            t0 = time.time()
            for c in chunks:
                c.disable_forward_pre_hook(param_sync=False)
            helper.create_cudagraphs()
            for c in chunks:
                c.enable_forward_pre_hook()
            helper.cuda_graph_set_manual_hooks()
            capture = {
                "seconds": round(time.time() - t0, 2),
                "allocated": gib(torch.cuda.memory_allocated() - was[0]),
                "reserved": gib(torch.cuda.memory_reserved() - was[1]),
                "peak": gib(torch.cuda.max_memory_allocated()),
            }
        if job.get("explain") and i == job.get("iters", 3) - 1:
            begin = len(torch.cuda.memory._snapshot()["device_traces"][0])
        step()
    explanation = explained(begin) if job.get("explain") else None
    host = torch.cuda.host_memory_stats() if hasattr(torch.cuda, "host_memory_stats") else {}
    stats = torch.cuda.memory_stats()
    out = {
        "rank": rank,
        "params": params,
        "expert_params": experts,
        "weights": gib(weights),
        "static": gib(static),
        "steps": steps,
        "capture": capture,
        "reserved_peak": gib(stats["reserved_bytes.all.peak"]),
        "optimizer_state": optimizer_bytes(opt),
        "host_allocated_peak": gib(host.get("allocated_bytes.peak", 0)),
        "host_active_peak": gib(host.get("active_bytes.peak", 0)),
    }
    if fp8.get("fp8_param"):
        out["buffers"] = [
            [
                str(b.param_dtype),
                b.numel,
                gib(b.param_data.numel() * b.param_data.element_size()) if b.param_data is not None else None,
                gib(b.grad_data.numel() * b.grad_data.element_size()),
            ]
            for c in chunks
            for b in list(c.buffers) + list(c.expert_parallel_buffers)
        ]
    if config.fine_grained_activation_offloading:
        from megatron.core.pipeline_parallel.fine_grained_activation_offload import (
            PipelineOffloadManager as M,
        )

        m = M.get_instance()
        out["offloaded_bytes"] = {k: int(v) for k, v in dict(m.offload_summary_bytes or {}).items()}
    out["explain"] = explanation
    out["device_used_mib"] = device_used()
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    status = dict(line.split(":", 1) for line in lines if ":" in line)
    out["host"] = {k: status[k].strip() for k in ("VmRSS", "VmHWM", "VmPin", "VmLck") if k in status}
    out["host_stats"] = {
        k: int(v) for k, v in host.items() if k.endswith(("peak", "current")) and "bytes" in k
    }
    if clocks is not None:
        steady = steps[3:] if len(steps) > 3 else steps[-1:]
        out["clocks"] = clocks.between([(step["began"], step["ended"]) for step in steady])
        clocks.stop()
    if job.get("profile"):
        out["profile"] = profiled(step)
    return out


def category(name):
    n = name.lower()
    for word, kind in (
        ("memcpy", "copy"),
        ("memset", "memset"),
        ("gemm", "gemm"),
        ("nvjet", "gemm"),
        ("cutlass", "gemm"),
        ("xmma", "gemm"),
        ("fmha", "attention"),
        ("flash", "attention"),
        ("sdpa", "attention"),
        ("cudnn", "attention"),
        ("permute", "permute"),
        ("sort_chunks", "permute"),
        ("row_id_map", "permute"),
        ("norm", "norm"),
        ("rope", "rope"),
        ("topk", "router"),
        ("router", "router"),
        ("sort", "router"),
        ("cross_entropy", "loss"),
        ("softmax", "loss"),
        ("multi_tensor", "optimizer"),
        ("adam", "optimizer"),
        ("reduce", "reduce"),
        ("triton", "triton"),
        ("cast", "cast"),
        ("transpose", "cast"),
        ("elementwise", "elementwise"),
        ("catarray", "elementwise"),
    ):
        if word in n:
            return kind
    return "other"


def profiled(step):
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as p:
        step()
    kernels, launches, kinds, names = [], {}, {}, {}
    for e in p.profiler.kineto_results.events():
        if str(e.device_type()).endswith("CUDA"):
            kernels.append((e.start_ns(), e.duration_ns(), e.name()))
        elif e.name().startswith("cuda") or e.name().startswith("cuLaunch"):
            a = launches.setdefault(e.name(), [0, 0.0])
            a[0] += 1
            a[1] = round(a[1] + e.duration_ns() / 1e6, 3)
    busy, end = 0, 0
    for s, d, n in sorted(kernels):
        busy += max(0, s + d - max(s, end))
        end = max(end, s + d)
        for where, key in ((kinds, category(n)), (names, n[:90])):
            a = where.setdefault(key, [0, 0.0])
            a[0] += 1
            a[1] += d / 1e6
    rounded = lambda d, top=None: dict(
        sorted(((k, [v[0], round(v[1], 3)]) for k, v in d.items()), key=lambda x: -x[1][1])[:top]
    )
    return {
        "kernels": len(kernels),
        "kernel_ms": round(sum(d for _, d, _ in kernels) / 1e6, 3),
        "busy_ms": round(busy / 1e6, 3),
        "span_ms": round((end - min(s for s, _, _ in kernels)) / 1e6, 3),
        "by_kind": rounded(kinds),
        "top": rounded(names, 60),
        "api": launches,
    }


if __name__ == "__main__":
    job = json.loads(sys.argv[1])
    print("READY", flush=True)
    sys.stdin.readline()
    t0 = time.time()
    try:
        result = dict(ok=True, **run(job))
    except torch.cuda.OutOfMemoryError as e:
        result = {"ok": False, "oom": True, "err": str(e)[:200]}
    except (
        RuntimeError,
        TypeError,
        ValueError,
        AssertionError,
        AttributeError,
        LookupError,
        ImportError,
    ) as e:
        result = {"ok": False, "err": repr(e)[:500], "tb": traceback.format_exc()[-2500:]}
    print("RESULT " + json.dumps(dict(result, wall_s=round(time.time() - t0, 1))), flush=True)
    os._exit(0)
