"""The visible, ordered list of every time term."""

from __future__ import annotations

from typing import Final

from mbsolve.constraints.rule import Term
from mbsolve.constraints.time.attention import ATTENTION_OPS, WINDOW_OPS
from mbsolve.constraints.time.comm import COMM_TERMS
from mbsolve.constraints.time.ffn import DENSE_OPS
from mbsolve.constraints.time.head import LOGITS_OPS, MTP_OPS
from mbsolve.constraints.time.moe import MOE_OPS
from mbsolve.constraints.time.offload import OFFLOAD_TERMS
from mbsolve.constraints.time.ops import terms_of
from mbsolve.constraints.time.recurrent import GDN_OPS, MAMBA_OPS
from mbsolve.constraints.time.tail import TAIL_TERMS

TIME_TERMS: Final[tuple[Term, ...]] = (
    *terms_of("attention", ATTENTION_OPS),
    *terms_of("window_attention", WINDOW_OPS),
    *terms_of("gdn", GDN_OPS),
    *terms_of("mamba", MAMBA_OPS),
    *terms_of("dense", DENSE_OPS),
    *terms_of("moe", MOE_OPS),
    *terms_of("logits", LOGITS_OPS),
    *terms_of("mtp", MTP_OPS),
    *OFFLOAD_TERMS,
    *COMM_TERMS,
    *TAIL_TERMS,
)
