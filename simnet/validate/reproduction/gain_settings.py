"""What is stated of published gains of sharded training and newer compressors, and what is taken for the rest.

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

from typing import NamedTuple

from simnet.validate.reproduction.published_runs import Stated


class Range(NamedTuple):
    """What is not stated: from where to where it may be, and what is in between."""

    low: float
    middle: float
    high: float


V100_FLOPS = Range(39e12, 50e12, 64e12)
"""Operations per second of a V100 in mixed precision: of Megatron-LM (arXiv 1909.08053), and DeepSpeed's record."""

A100_FLOPS = Range(105.8e12, 119e12, 133.3e12)
"""Of an A100 in bfloat16: as the authors of SDP4Bit measured with 32 microbatches, when exchanges weigh little."""

NODE_BANDWIDTH = {"V100": Range(12.2e9, 150e9, 150e9), "A100": Range(300e9, 300e9, 300e9)}
"""Of a GPU in its node [byte/s]: PCIe 3 as measured, or NVLink."""

BESIDE = Range(1.2, 1.5, 1.8)
"""How many times as long computing takes beside collectives. The upper end is what matrix products and attention of an
A100 took during an all-gather over NVLink, 1.76 and 1.83 times; elementwise kernels took 2.5 (NVIDIA/nccl, issue 1428).
The lower end is an assumption: NCCL has 15 % of a GPU's multiprocessors (issue 1432, which has no times)."""

ETHERNET_LATENCY, FAST_LATENCY = Range(0.0, 25e-6, 50e-6), Range(0.0, 2.5e-6, 5e-6)
"""Of a card over Ethernet with TCP, and of InfiniBand and Slingshot [s]."""

STATED = (
    Stated(
        "1-bit Adam (2102.02888, and DeepSpeed's blog post)",
        "BERT-Large in fp16 on V100, 16 sequences a GPU, up to 256 GPUs; SQuAD, 3 of 384 tokens, 32 GPUs; Ethernet of "
        "40 Gbit/s, of which iperf got 4.1, and InfiniBand of 32; 15 and 25 % warm-up; scripts: 128 tokens, 4 GPUs a "
        "node, reduced once behind the backward pass",
        "GPUs of the best values (256, 32 of SQuAD, 64 of InfiniBand), latency (0 to 50 us of Ethernet, 0 to 5 of "
        "InfiniBand), links inside (12 to 150 GB/s), kernels (none to those of v100-torch1.5). Later, of Table 1 as "
        "others quote it: both passes and the optimiser's step are 171 to 177 ms, 148 to 151 with InfiniBand (of SQuAD "
        "passes at 39 to 64 TFLOP/s, and the step), dense all-reduces get 4.6 to 5.0 Gbit/s of a card, and InfiniBand "
        "may have 8 GPUs a node; what signs get of a card of 40 Gbit/s, in many streams, is not stated (as dense ones, "
        "to all). [Dense, 1.34 GB a card; signs, four GPUs to a card, 0.21: 2.3 and 0.36 s, with computing 4.7 times, "
        "at 40 Gbit/s 13; whole 3.0 to 4.6. SQuAD 5.3 to 17, and 2.6 to 3.4. InfiniBand 1.9 to 2.5. The volume 4.9 "
        "times]",
    ),
    Stated(
        "0/1 Adam (2202.06009, and DeepSpeed's examples)",
        "up to 128 GPUs, over 1-bit Adam; for BERT-Large `freeze_step` 23,000 of 1-bit Adam, `var_freeze_step` 12,500, "
        "`local_step_scaler` 32,678, intervals of 16 at most",
        "links and computing as of 1-bit Adam on Ethernet, whether throughput is of the whole training or of what "
        "comes behind the warm-up (both), the three other tasks. Later: the training has 152,511 steps, as the name of "
        "its checkpoint says, and the warm-up of 1-bit Adam is 15 to 25 %, as DeepSpeed's tutorial advises. [Some 154 "
        "dense steps, 12,350 of signs, 61,900 exchanges in the local steps: 51 % fewer rounds, 85 to 89 % less volume; "
        "1.8 times behind the warm-up, 3.0 whole]",
    ),
    Stated(
        "ZeRO++ (2306.10209, and DeepSpeed's blog post)",
        "384 V100, 1,024 or 2,048 tokens a GPU, 100 to 800 Gbit/s between nodes, GPT of 18 billion and others against "
        "ZeRO-3; tutorial: 40 layers of 6,144, nodes of 16, activations recomputed, buckets of 10^7, overlap",
        "the model of each figure (18 billion), computing (8 operations an entry and token at 39 to 64 TFLOP/s), "
        "NVLink (150 GB/s), latency (0 to 5 us), how much overlap there is (all that the order of calls allows, or "
        "none), what quantising takes (nothing, to 16 bytes an entry at 804 GB/s). Later: computing takes 1.2 to 1.8 "
        "times as long beside collectives; sequences are of 512 tokens, as in the tutorial. [A card carries 110 GB, or "
        "28: 8.8 and 2.2 s at 100 Gbit/s beside 2.4 to 3.9 of computing: 1.7 to 3.6 times; at 400, 1.0 to 1.6 with "
        "1,024 tokens, 1.0 to 1.3 with 2,048. Across nodes 4.0 times less]. Later still: gains at 400 Gbit/s have two "
        "readings, of the text of the post and of the caption of its figure, and each has its verdict",
    ),
    Stated(
        "SDP4Bit (2410.15526, README, scripts)",
        "128 GPUs at most, 4 A100 a node on Slingshot 10; one microbatch of one sequence; 1.3 billion alone, 6.7 in "
        "tensors of 4 GPUs, 18 also in two stages; Megatron's distributed optimiser, gradients in fp32, weights in "
        "bfloat16; groups of 2,048 and 128",
        "cards (100 or 200 Gbit/s a node), sequences (1,024 or 2,048 tokens), computing (6 operations an entry and "
        "token at 106 to 133 TFLOP/s a GPU), latency (0 to 5 us), overlap (none, the default of the time), what "
        "quantising takes (nothing), communication of tensor parallelism (none; within a node). Of H800 with "
        "InfiniBand the links are not known. [2.4 to 5.2 times, the larger models more]",
    ),
    Stated(
        "LoCo (2407.04480, abstract)",
        "LLaMA and MoE in Megatron-LM and FSDP, 4 bits, 14 to 40 % faster with Adam",
        "the model (Llama 3 8B), GPUs (32 A100 in nodes of 8), tokens (4,096 a GPU), links (100 to 1,600 Gbit/s a "
        "node), gradients in bfloat16; FSDP gathers twice, Megatron's distributed optimiser once and without overlap. "
        "Later: computing takes 1.2 to 1.8 times as long beside collectives; of the mixture of experts, Mixtral, 13 of "
        "47 billion parameters compute for a token; FSDP may gather once; Megatron-LM reduces gradients in fp32 unless "
        "told otherwise. [FSDP 1.0 to 1.7 times, Megatron 1.02 to 2.2]",
    ),
    Stated(
        "ARC-Top-K (2510.26709, Table V)",
        "LLaMA of 60 million to 1 billion on 4 A100 of 40 GB without links between GPUs, one sequence a GPU, ratio "
        "0.2, times of the dense steps (0.147 to 3.085 s); up to 60.7 % less; code: r 4, 256 tokens, fp32, one call a "
        "tensor",
        "computing (nothing, to 9.75 TFLOP/s, half of an A100's peak in fp32), links (what the rest of the dense step "
        "means, 2.6 to 2.8 GB/s with 1 billion: an input), kernels (none, to those of a100-torch2.6), no overlap. "
        "Later: the ratio while 50 steps were timed, as the released hook begins at 0.8 and is at 0.2 after 102 steps "
        "(0.2, or the first 50). [A fifth of the bytes and the sketch: 74 to 80 % less; of the first 50 steps a third]",
    ),
    Stated(
        "OmniReduce (SIGCOMM 2021, guide to the artifact)",
        "8 workers and 8 aggregators, blocks of 256, 10 or 100 Gbit/s; tensors of 100 MB of which 1 to 100 % are not "
        "zero",
        "how many blocks of the six models are empty, and computing (none: the exchange alone); aggregators are "
        "workers here; latency (5 to 50 us); blocks that are not empty (1 to 100 %, each worker its own). [2 / (d + "
        "u): 1 to 22 times, so that nothing can fail; 8.2 needs some 3 % of the blocks, 1.4 to 2.9 need 10 to 50]",
    ),
    Stated(
        "THC (2302.08545, abstract)",
        "time to accuracy with a software server against the state of the art",
        "workers (4), links (25 to 100 Gbit/s), model (VGG-16 on V100, 83.5 ms for 16 images), baseline (dense ring), "
        "servers (every worker a part), as many steps as dense, kernels (none to those of v100-torch2.6). Later: no "
        "overlap, or buckets of 25 MiB (the default of DDP; Horovod fuses up to 64 MB) beside a backward pass of 67 % "
        "of the computing, both assumptions. [1.0 to 2.5 times]",
    ),
)
"""Published gains; what bytes alone say beforehand is in brackets."""
