#!/bin/bash
# Llama 3 70B on 64 GPUs with Megatron-LM, as a batch script would start it.
export CUDA_DEVICE_MAX_CONNECTIONS=1

GPUS_PER_NODE=8
NNODES=${NNODES:-8}
TP=4
PP=4

MODEL_ARGS=(
    --num-layers 80
    --hidden-size 8192
    --ffn-hidden-size 28672
    --num-attention-heads 64
    --group-query-attention
    --num-query-groups 8
    --vocab-size 128256
    --seq-length 8192
    --max-position-embeddings 8192
    --position-embedding-type rope
    --normalization RMSNorm
    --swiglu
    --disable-bias-linear
    --attention-dropout 0.0
    --hidden-dropout 0.0
    --untie-embeddings-and-output-weights
)

PARALLEL_ARGS="
    --tensor-model-parallel-size $TP \
    --pipeline-model-parallel-size $PP \
    --num-layers-per-virtual-pipeline-stage 5 \
    --sequence-parallel \
    --use-distributed-optimizer \
    --overlap-grad-reduce \
    --overlap-param-gather
"

torchrun --nproc-per-node $GPUS_PER_NODE --nnodes $NNODES --rdzv-endpoint "$HEAD_NODE:29500" \
    pretrain_gpt.py "${MODEL_ARGS[@]}" $PARALLEL_ARGS \
    --micro-batch-size 1 --global-batch-size 128 --bf16 \
    --data-path "$DATA" --lr 1.5e-4 --train-iters 100000 --save checkpoints --log-interval 10 \
    2>&1 | tee train.log
