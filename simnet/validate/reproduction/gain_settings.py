"""Stated settings of published gains (sharded training, newer compressors), and assumed values for the rest.

It was written, and is in the history of this file, before anything was simulated, though with the published values
known. What came to it later, from measured figures and released code, is marked so. `STATED` says it in words, with
what bytes over rates alone make of it in brackets; the ranges are the same in figures.

References
----------
H. Tang et al., "1-bit Adam", arXiv 2102.02888, and the blog post of 9 September 2020 in deepspeedai/DeepSpeed,
``docs/_posts``; the paper itself was not at hand, and ``profiles.csv`` is its Table 1, 16 sequences a GPU and no
accumulation, as quoted in full by https://rajatbisht.net/paper_summaries/detailed_summary/0043_1Bit_Adam.html; Y. Lu et
al., "0/1 Adam", arXiv 2202.06009, and microsoft/DeepSpeedExamples, ``bing_bert/01_adam``; G. Wang et al., "ZeRO++",
arXiv 2306.10209, with the blog post ``blogs/zeropp`` and ``docs/_tutorials/zeropp.md`` of DeepSpeed; J. Jia et al.,
"SDP4Bit", arXiv 2410.15526, README and scripts of hpdps-group/SDP4Bit, and what its authors measured later,
jindajia/icml-rebuttal-anwser, README; X. Xie et al., "LoCo", arXiv 2407.04480; "ARC-Top-K", arXiv 2510.26709, Table V
as quoted by yiran529/ARC-TopK, ``docs``, and ``comm_hooks/group_topk_hook_no_reshape_c4.py`` there; J. Fei et al.,
"OmniReduce", SIGCOMM 2021, and sands-lab/omnireduce-experiments, ``docs``; M. Li et al., "THC", NSDI 2024.
"""

from __future__ import annotations

from simnet.validate.reproduction.table import Interval

V100_FLOPS = Interval(39e12, 64e12, 50e12)
"""Operations per second of a V100 in mixed precision: of Megatron-LM (arXiv 1909.08053), and DeepSpeed's record."""

A100_FLOPS = Interval(105.8e12, 133.3e12, 119e12)
"""Operations per second of an A100 in bfloat16, measured by the SDP4Bit authors with 32 microbatches."""

NODE_BANDWIDTH = {"V100": Interval(12.2e9, 150e9, 150e9), "A100": Interval(300e9, 300e9, 300e9)}
"""Bandwidth of a GPU inside its node [byte/s]: measured PCIe 3, or NVLink."""

BESIDE = Interval(1.2, 1.8, 1.5)
"""Slowdown of computing while collectives run. The upper end is what matrix products and attention of an
A100 took during an all-gather over NVLink, 1.76 and 1.83 times; elementwise kernels took 2.5 (NVIDIA/nccl, issue 1428).
The lower end is an assumption: NCCL has 15 % of a GPU's multiprocessors (issue 1432, which has no times)."""

ETHERNET_LATENCY, FAST_LATENCY = Interval(0.0, 50e-6, 25e-6), Interval(0.0, 5e-6, 2.5e-6)
"""Latency of a network card over Ethernet with TCP, and over InfiniBand or Slingshot [s]."""
