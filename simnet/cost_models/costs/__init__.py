"""Closed-form alpha-beta costs of collectives and sparsifiers, in seconds, one function for each formula.

The arguments carry the papers' symbols and broadcast against each other as numpy arrays do:

======  ================================================================
alpha   latency of a message [s], >= 0
beta    seconds per byte [s/byte], >= 0; 1 / beta is the bandwidth
M       bytes of the message, >= 0: the dense gradient, unless said otherwise
c       density, the fraction of entries kept, in (0, 1]; c M is the bytes of the kept values
N       number of workers, >= 1; one worker communicates nothing, which costs 0
======  ================================================================

The time is rounds times alpha plus bytes times beta. In formulas n = M / 4 is the length of the gradient and k = c n
the entries kept; an entry is a float32 value with an int32 index, 8 bytes, unless said otherwise. What a scheme selects
may differ from k: it is an argument, in entries, and k what it defaults to. Functions name the source of a *published*
formula; others are *derived* from the messages of the algorithm.

log is log2. Where N is no power of two, the rounds of collectives are counted as their schedules have them, see
`simnet.cost_models.costs.collectives`; formulas of the papers keep the real-valued log2. On an idle star schedules take
exactly as long where N is a power of two (all-gather, ring, parameter server, pairwise, broadcast: for every N). Values
outside the ranges, and NaN, raise ValueError. Scalars in give a numpy float, arrays a float64 array.

References
----------
[1] S. Tyagi, M. Swany, "Flexible Communication for Optimal Distributed Learning over Unpredictable Networks",
    IEEE BigData 2023, arXiv 2312.02493: Table I and Eqns 1b, 3, 4a, 4b, 5a-c.
[2] R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 19,
    2005.
[3] S. Li, T. Hoefler, "Near-Optimal Sparse Allreduce for Distributed Deep Learning", PPoPP 2022, arXiv 2201.07598:
    Eqns 1-3, Theorem 3.1, as later papers quote them.
[4] C. Renggli et al., "SparCML: High-Performance Sparse Communication for Machine Learning", SC 2019.
[5] S. Shi et al., "A Distributed Synchronous SGD Algorithm with Global Top-k Sparsification for Low Bandwidth
    Networks", ICDCS 2019.
[6] M. Zhao et al., "SparDL: Distributed Deep Learning Training with Efficient Sparse Communication", ICDE 2024, arXiv
    2304.00737.
[7] D. Yoon, S. Oh, "Preserving Near-Optimal Gradient Sparsification Cost for Scalable Distributed Deep Learning"
    (ExDyna), CCGrid 2024, arXiv 2402.13781; MiCRO, arXiv 2310.00967; DEFT, arXiv 2307.03500; and their released code.
[8] C.-Y. Chen et al., "ScaleCom: Scalable Sparsified Gradient Compression for Communication-Efficient Distributed
    Training" (CLT-k), NeurIPS 2020.
[9] D. Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding", NeurIPS 2017.
[10] J. Bernstein et al., "signSGD: Compressed Optimisation for Non-Convex Problems", ICML 2018.
[11] T. Vogels, S. P. Karimireddy, M. Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
     Optimization", NeurIPS 2019.
[12] B. Peng, J. Quesnelle, D. P. Kingma, "DeMo: Decoupled Momentum Optimization", 2024, arXiv 2411.19870.
[13] B. Therien et al., "MuLoCo: Muon is a Practical Inner Optimizer for DiLoCo", 2025, arXiv 2505.23725; released code.
[14] S. Jaghouar et al., "INTELLECT-1 Technical Report", 2024, arXiv 2412.01152; released code.
[15] "ARC-Top-K", 2025, arXiv 2510.26709; released code.
[16] P. Richtarik, I. Sokolov, I. Fatkhullin, "EF21: A New, Simpler, Theoretically Better, and Practically Faster Error
     Feedback", NeurIPS 2021, arXiv 2106.05203; released code.
[17] H. Tang et al., "1-bit Adam: Communication Efficient Large-Scale Training with Adam's Convergence Speed", ICML
     2021, arXiv 2102.02888; released code.
[18] J. Fei et al., "Efficient Sparse Collective Communication and its Application to Accelerate Distributed Deep
     Learning" (OmniReduce), SIGCOMM 2021; released code.
[19] M. Li et al., "THC: Accelerating Distributed Deep Learning Using Tensor Homomorphic Compression", NSDI 2024, arXiv
     2302.08545; released code.
[20] G. Wang et al., "ZeRO++: Extremely Efficient Collective Communication for Giant Model Training", 2023, arXiv
     2306.10209; released code.

Examples
--------
Dense ring all-reduce of ResNet-18 by 8 workers at 1 ms and 10, 5 and 1 Gbit/s:

>>> import numpy as np
>>> bandwidth = np.array([10e9, 5e9, 1e9]) / 8
>>> ring_allreduce(1e-3, 1 / bandwidth, 46_758_048, 8).round(4)
array([0.0795, 0.1449, 0.6686])
"""

# ruff: noqa: F403 - every public name of these modules is one of this package
from simnet.cost_models.costs.closed_form import ClosedForm, Traffic, check_arguments
from simnet.cost_models.costs.collectives import *
from simnet.cost_models.costs.quantisers import *
from simnet.cost_models.costs.sparsifiers import *

del ClosedForm, Traffic, check_arguments
