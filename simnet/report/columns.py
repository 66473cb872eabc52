"""The columns of all tables and JSON that commands write: a name means one quantity, wherever it is written.

Names end in their units. In JSON a name is that in a row, or the path to the value in an object, as ``memory.peak_B``;
NAME stands for what a user named, such as a policy, or for one of several options. The module is long: it is a table.
"""

from __future__ import annotations

from typing import NamedTuple


class Column(NamedTuple):
    """What a column holds.

    Parameters
    ----------
    unit : str
        Its unit; empty for what has none.
    meaning : str
        What it is.
    commands : str
        The commands that write it, one after another; ``hooks`` are the logs of `simnet.hooks`.
    """

    unit: str
    meaning: str
    commands: str


ENDS = (("low", "lower"), ("high", "upper"))
"""Ends of an interval, and what they are called."""

PARTS = ("compute", "select", "messages", "merge", "exposed", "update")
"""Parts of an iteration that are predicted."""

FITTED = (
    (".real", ", of the trace"),
    (".synthetic", ", of the synthetic gradients"),
    (".ratio", ", the second over the first"),
    (".error", ", by which part they may differ by chance"),
)
"""What a fit says of each statistic."""

COLUMNS = {
    # Of what a row is.
    "policy": Column("", "name of the policy", "run, sweep, predict job"),
    "exchange": Column("", "label of the exchange", "compare, choose, predict job, hooks"),
    "scheme": Column("", "name of its scheme", "choose"),
    "options.NAME": Column("", "an option of the scheme", "choose"),
    "kind": Column("", "dense, sparse, or what else the scheme is; of a prediction its basis", "choose, predict"),
    "label": Column("", "the job of a grid in words: its parameters and its exchange", "choose"),
    "parameters.NAME": Column("", "value of a parameter of the grid, as it was given", "choose"),
    "cell": Column("", "number of the cell in the grid", "sweep"),
    "seed": Column("", "seed of all draws", "run, compare, sweep"),
    "job": Column("", "the main job, or the name of one beside it", "run"),
    "iteration": Column("", "number of the iteration, from 0", "run, predict job, hooks"),
    "purpose": Column("", "train, or explore for what a policy tried before that iteration", "run"),
    "worker": Column("", "number of the worker", "run"),
    "choice": Column(
        "",
        "exchange that the policy chose; of several iterations the one chosen most often",
        "run, sweep",
    ),
    "switch_count": Column("", "how often the choice changed from one iteration to the next", "run, sweep"),
    "density": Column(
        "",
        "fraction of the entries that was asked for; of several iterations their mean",
        "run, compare, sweep, hooks",
    ),
    "workers": Column("", "number of workers P", "run, compare, predict job, step, utilisation, trace info, trace fit"),
    "iterations": Column("", "iterations done, or that a trace is of", "run, sweep, trace info"),
    "iterations_simulated": Column("", "iterations that were simulated to answer for all", "choose"),
    "planned": Column("", "iterations that the job was to do", "run"),
    "inner_steps": Column(
        "",
        "inner steps of a worker in the whole job: those of a training strategy, else one an iteration",
        "run, sweep",
    ),
    "steady_from": Column(
        "",
        "first iterations that means leave out, until all that are compared had settled",
        "run, compare, sweep, predict job",
    ),
    "settled_after": Column("", "iterations until it had settled; none if it has not", "run, compare"),
    "unsettled": Column("", "why it has not settled, and has no rank; empty if it has", "run, compare"),
    "unsettled_with": Column("", "number of seeds with which it has not settled", "run"),
    "ended": Column("", "whether workers died and the job did not get to its last iteration", "run"),
    "status": Column(
        "",
        "done; ended: workers died; unsettled, failed: see message; refused: the cell did not run",
        "sweep",
    ),
    "message": Column("", "why there is no result, or no rank", "sweep"),
    "warning": Column("", "why the sample is too small for what it selects", "sweep"),
    "overlapped": Column("", "whether its exchanges go bucket by bucket during the backward pass", "sweep"),
    "computing": Column(
        "",
        "for how long workers compute, and where that is from, where it is what is known of the model",
        "run, compare, sweep",
    ),
    "settled": Column("", "whether the time is that of a state that depends on the gradients, once settled", "choose"),
    # Moments.
    "start_s": Column("s", "when it began, in simulated time", "run, time"),
    "finish_s": Column("s", "when it ended, in simulated time", "run, time"),
    "began_s": Column("s", "when the iteration began, since the first one did", "predict job, hooks"),
    # Time of an iteration; in a row for several the mean of those from `steady_from` on.
    "iteration_s": Column(
        "s",
        "duration of an iteration: its compute, select, communicate and wait, means over the workers",
        "run, compare, sweep",
    ),
    "compute_s": Column(
        "s",
        "forward and backward pass, mean over the workers of the row; with the optimizer where no `update_s` is there",
        "run, sweep, predict job, hooks",
    ),
    "select_s": Column(
        "s",
        "selecting and packing, mean over the workers; with merging and unpacking where no `merge_s` is there",
        "run, compare, sweep, choose, predict job, hooks",
    ),
    "select_low_s": Column(
        "s",
        "the least that `select_s` may be, by the intervals of the device's kernels",
        "run, compare, sweep, choose, predict job",
    ),
    "select_high_s": Column(
        "s",
        "the most that `select_s` may be, by the intervals of the device's kernels",
        "run, compare, sweep, choose, predict job",
    ),
    "communicate_s": Column(
        "s",
        "having a message of one's own in flight while not computing, mean over the workers, waiting left out",
        "run, sweep",
    ),
    "wait_s": Column("s", "waiting for other workers, mean over the workers of the row", "run, sweep"),
    "communicate_and_wait_s": Column(
        "s",
        "`communicate_s` and `wait_s` together: all of an iteration that is neither computing nor selecting",
        "compare, choose",
    ),
    "merge_in_select_s": Column(
        "s",
        "part of `select_s` that comes after the last selection: merging, cutting and unpacking",
        "run",
    ),
    "exchange_s": Column("s", "an exchange that nothing hides: selecting, communicating and waiting", "choose"),
    "mean_iteration_s": Column(
        "s",
        "mean duration of all iterations of the job, those of exploration included",
        "run, choose",
    ),
    "mean_compute_s": Column("s", "mean of `compute_s` over all iterations of the job", "choose"),
    "mean_select_s": Column("s", "mean of `select_s` over all iterations of the job", "choose"),
    "mean_select_low_s": Column(
        "s",
        "the least that `mean_select_s` may be, by the intervals of the device's kernels",
        "choose",
    ),
    "mean_select_high_s": Column(
        "s",
        "the most that `mean_select_s` may be, by the intervals of the device's kernels",
        "choose",
    ),
    "mean_communicate_and_wait_s": Column(
        "s",
        "mean over all iterations of the job of what is neither computing nor selecting",
        "choose",
    ),
    "iteration_5_percent_s": Column("s", "duration that 5 % of the iterations of the job are below", "choose"),
    "iteration_95_percent_s": Column("s", "duration that 95 % of the iterations of the job are below", "choose"),
    "spread.iteration_s.p50": Column("s", "median duration of the iterations from `steady_from` on", "run"),
    "spread.iteration_s.p90": Column(
        "s",
        "duration that 90 % of the iterations from `steady_from` on are below",
        "run",
    ),
    "spread.iteration_s.p99": Column(
        "s",
        "duration that 99 % of the iterations from `steady_from` on are below",
        "run",
    ),
    "spread.exchange_s.p50": Column(
        "s",
        "median over the iterations from `steady_from` on of `select_s`, `communicate_s` and `wait_s` together",
        "run",
    ),
    "spread.exchange_s.p90": Column("s", "what 90 % of these sums are below", "run"),
    "spread.exchange_s.p99": Column("s", "what 99 % of these sums are below", "run"),
    "alone_s": Column(
        "s",
        "`mean_iteration_s` if each exchange, starting when it did, had had the network to itself",
        "run",
    ),
    "slowdown": Column(
        "",
        "`mean_iteration_s` over `alone_s`; of computing by how much one that straggles is slower",
        "run, calibrate compute",
    ),
    "throughput": Column(
        "",
        "samples or tokens that all workers go through in a second, see `throughput_unit`",
        "run, compare, choose, step",
    ),
    "throughput_unit": Column("", "what `throughput` counts", "run, compare, choose, step"),
    # Time of an iteration part by part, of hooks and of what predicts their logs.
    "messages_s": Column(
        "s",
        "a message is under way, beside computing or not, waiting for other ranks included",
        "predict job, hooks",
    ),
    "merge_s": Column(
        "s",
        "what is done between messages and after the last one of a bucket, summed over the buckets",
        "predict job, hooks",
    ),
    "exposed_s": Column(
        "s",
        "waiting for exchanges with nothing left to compute; of `step` the longest of all workers",
        "predict job, step, hooks",
    ),
    "update_s": Column("s", "the optimizer", "predict job, hooks"),
    "total_s": Column(
        "s",
        "the iteration of a rank: `compute_s + select_s + exposed_s + update_s`; predicted, the mean over ranks",
        "predict job, hooks",
    ),
    **{
        f"{part}_{end}_s": Column("s", f"{word} end of the interval of `{part}_s`", "predict job")
        for part in ("compute", "messages", "merge", "exposed", "update", "total")
        for end, word in ENDS
    },
    **{
        f"{name}.{key}": Column("s", meaning, "predict job")
        for name, part in (*((one, one) for one in PARTS), ("median_iteration", "total"))
        for key, meaning in (
            ("seconds", f"median of `{part}_s` over the iterations from `steady_from` on, as predicted"),
            *((end, f"{word} end of the interval of `{name}.seconds`") for end, word in ENDS),
        )
    },
    # Time of a whole job.
    "simulated_s": Column("s", "simulated time of all iterations, exploration included", "run, sweep"),
    "job_s": Column(
        "s",
        "time of the whole job, or until its model has the target accuracy: what rows are ranked by",
        "choose",
    ),
    "sampling_error_s": Column(
        "s",
        "standard error of `job_s`, as a sample of the iterations stands for all",
        "choose",
    ),
    "over_the_fastest": Column("", "`job_s` over that of the fastest, less one", "choose"),
    "total_compute_s": Column("s", "computing in all iterations of the job, mean over the workers", "run, choose"),
    "total_select_s": Column(
        "s",
        "selecting, packing, merging and unpacking in all iterations of the job, mean over the workers",
        "run, choose",
    ),
    "total_select_low_s": Column(
        "s",
        "the least that `total_select_s` may be, by the intervals of the device's kernels",
        "run",
    ),
    "total_select_high_s": Column(
        "s",
        "the most that `total_select_s` may be, by the intervals of the device's kernels",
        "run",
    ),
    "total_communicate_s": Column(
        "s",
        "communicating in all iterations of the job, mean over the workers, waiting left out",
        "run",
    ),
    "total_wait_s": Column("s", "waiting for other workers in all iterations of the job, mean over the workers", "run"),
    "total_communicate_and_wait_s": Column(
        "s",
        "all of the job's time that is neither computing nor selecting",
        "choose",
    ),
    "breakdown_s.compute": Column("s", "`total_compute_s`", "run"),
    "breakdown_s.select": Column("s", "`total_select_s`", "run"),
    "breakdown_s.communicate": Column("s", "`total_communicate_s`", "run"),
    "breakdown_s.wait": Column("s", "`total_wait_s`", "run"),
    "exploration.iterations": Column("", "iterations that the policy tried besides training", "run"),
    "exploration.seconds": Column("s", "time of these, part of `simulated_s`", "run"),
    "step_s": Column(
        "s",
        "time of a training step; of a job its time over its inner steps",
        "run, sweep, choose, step",
    ),
    "utilisation": Column(
        "",
        "share of the job's time in which workers compute, mean over those that take part",
        "run, sweep, choose",
    ),
    "money": Column(
        "",
        "price of the workers' devices and of what they send, in the currency of job.prices",
        "run, sweep, choose",
    ),
    "job.seconds": Column("s", "predicted time of the whole job", "predict job"),
    "job.low": Column("s", "lower end of the interval of `job.seconds`", "predict job"),
    "job.high": Column("s", "upper end of the interval of `job.seconds`", "predict job"),
    "best_of_each_iteration.job_s": Column(
        "s",
        "time of the job if each iteration had the exchange that is fastest in it",
        "choose",
    ),
    "best_of_each_iteration.fixed_job_s": Column("s", "`job_s` of the fastest fixed exchange", "choose"),
    "best_of_each_iteration.saved": Column("", "share of that time that is saved", "choose"),
    "best_of_each_iteration.iterations_simulated": Column(
        "",
        "iterations that were simulated to answer for all",
        "choose",
    ),
    "best_of_each_iteration.shares_of_iterations.NAME": Column(
        "",
        "share of the iterations with that exchange",
        "choose",
    ),
    "flexible.NAME.job_s": Column("s", "time of the job under an adaptive policy", "choose"),
    "flexible.NAME.fixed_job_s": Column("s", "`job_s` of the fastest fixed exchange", "choose"),
    "flexible.NAME.saved": Column("", "share of that time that is saved", "choose"),
    "flexible.NAME.iterations_simulated": Column("", "iterations that were simulated to answer for all", "choose"),
    "flexible.NAME.shares_of_iterations.NAME": Column("", "share of the iterations with that exchange", "choose"),
    # Bytes.
    "bytes_sent_B": Column(
        "B",
        "sent in the iteration by the workers of the row: by all, or by the one that the row is of",
        "run",
    ),
    "bytes_received_B": Column("B", "received in the iteration by the worker of the row", "run"),
    "bytes_sent_per_worker_B": Column(
        "B",
        "sent in an iteration by a worker, mean over the workers and the iterations from `steady_from` on",
        "compare",
    ),
    "mean_bytes_sent_per_worker_B": Column(
        "B",
        "sent in an iteration by a worker, mean over the workers and all iterations of the job",
        "choose",
    ),
    "bytes_sent_by_busiest_B": Column("B", "sent in an exchange by the worker that sends most", "choose"),
    "bytes_sent_per_worker_step_B": Column(
        "B",
        "sent in an inner step by a worker, mean over the workers and all steps of the job",
        "run, choose",
    ),
    "total_bytes_sent_B": Column("B", "sent in all iterations by all workers, exploration included", "run, sweep"),
    "nbytes_B": Column("B", "size of the message", "run"),
    # What was selected.
    "selected": Column("", "entries that a worker selected itself, mean over the workers", "run, compare"),
    "density_ratio": Column(
        "",
        "entries that a worker selected, of MiCRO and ExDyna all workers together, over the k asked for; of thresholds",
        "run, compare",
    ),
    "actual_density": Column(
        "",
        "entries that the workers sent, all different ones together, over n",
        "run, compare, sweep",
    ),
    "build_up": Column("", "entries that the workers sent, all different ones together, over k", "run, compare, sweep"),
    "imbalance": Column("", "P times the most entries that a worker selected, over those of all", "run, compare"),
    "period": Column("", "iterations after which what the exchange sends comes again", "run"),
    "gain": Column("", "share of the gradient's norm that what is sent holds", "run"),
    "global_error": Column("", "norm of a worker's residual, mean over the workers", "run, compare"),
    # Links.
    "latency_s": Column(
        "s",
        "latency between workers; of an iteration the worst between neighbours at its start",
        "run, utilisation",
    ),
    "bandwidth_Bps": Column(
        "B/s",
        "bandwidth between workers; of an iteration the worst between neighbours at its start",
        "run, utilisation",
    ),
    # Training.
    "loss": Column(
        "",
        "of the model that is trained, on data held out, the last that was measured",
        "run, compare, sweep",
    ),
    "accuracy": Column("", "on data held out, the last that was measured", "run, compare, sweep"),
    "best_loss": Column("", "the lowest that was measured", "run, compare, sweep"),
    "best_accuracy": Column("", "the highest that was measured", "run, compare, sweep"),
    "target_accuracy": Column("", "accuracy whose time is of interest", "run, compare, sweep"),
    "iterations_to_target": Column("", "iterations until `target_accuracy` was first measured", "run, compare, sweep"),
    "time_to_target_s": Column("s", "simulated time until then, exploration included", "run, compare, sweep"),
    "statistical_efficiency": Column(
        "",
        "iterations to the target of the first policy over its own",
        "run, compare, sweep",
    ),
    "parallel_efficiency": Column(
        "",
        "share of the simulated time in which gradients are computed to train with",
        "run, compare, sweep",
    ),
    "first_to_target": Column(
        "",
        "whether no other policy that can be run reached the target sooner",
        "run, compare, sweep",
    ),
    "reached_with": Column("", "number of seeds with which the target was reached", "run"),
    # Who is fastest, and how sure that is.
    "wins": Column("", "whether it was the fastest policy that can be run, alone", "sweep"),
    "tied": Column(
        "",
        "whether it was as fast as the fastest, to 0.1 % or as workers enter a little apart, or another as it was",
        "sweep",
    ),
    "tied_with": Column(
        "",
        "those that are as fast as the first, to 0.1 % or as workers enter a little apart",
        "choose, predict job",
    ),
    "vs_best": Column("", "`simulated_s` over that of the fastest policy that can be run", "sweep"),
    "margin": Column("", "time of the job with the next exchange over that with the fastest, less one", "choose"),
    "margin_of_exchange": Column("", "time of the next exchange over that of the fastest, less one", "choose"),
    "decision": Column("", "exchange or job that is chosen", "choose"),
    "fastest": Column("", "policy with which the job takes the least time", "predict job"),
    "winner.policy": Column("", "policy that took the least time", "run"),
    "winner.tied_with": Column("", "policies tied with it", "run"),
    "winner.runner_up": Column("", "the next one", "run"),
    "winner.margin_s": Column("s", "how much less time it took than the next", "run"),
    "winner.margin_fraction": Column("", "the same over the time of the next", "run"),
    "low_s": Column("s", "lower end of the 90 % interval of the time by which the row is ranked", "run, choose"),
    "high_s": Column("s", "upper end of the 90 % interval of the time by which the row is ranked", "run, choose"),
    "start_low_s": Column("s", "the least that the time of the row may be as workers enter a little apart", "choose"),
    "start_high_s": Column("s", "the most that the time of the row may be as workers enter a little apart", "choose"),
    "chance_to_be_fastest": Column(
        "",
        "chance to take the least time, by what such predictions were off by",
        "run, sweep, choose, predict job",
    ),
    "chance_of_fastest_exchange": Column("", "chance that the exchange by itself takes the least time", "choose"),
    "chance_of_fastest_iteration": Column("", "chance that its mean iteration takes the least time", "compare"),
    "regret_of_job": Column(
        "",
        "expected share by which the job takes longer than with the fastest",
        "run, predict job, choose",
    ),
    "regret_of_exchange": Column("", "expected share by which an exchange takes longer than the fastest", "choose"),
    "regret": Column("", "null, where no policy knows each iteration beforehand", "run"),
    "regret_s": Column("s", "time lost against the one-step oracle", "run, sweep"),
    "regret_low_s": Column("s", "lower end of the interval of its mean over seeds", "run"),
    "regret_high_s": Column("s", "upper end of the interval of its mean over seeds", "run"),
    "sure": Column("", "whether the chance to be fastest is enough to rely on", "choose, predict job"),
    "too_close_to_call": Column("", "whether it is not", "choose"),
    **{
        f"{stem}_prediction_{end}_s": Column("s", f"{word} end of the 90 % prediction interval of `{stem}_s`", commands)
        for stem, commands in (("simulated", "run, sweep"), ("iteration", "compare"), ("duration", "time"))
        for end, word in ENDS
    },
    "extrapolated": Column("", "exchanges whose conditions were never measured", "choose"),
    "evidence": Column(
        "",
        "how well times are known: measured, extrapolated or assumed",
        "run, compare, sweep, choose, predict job, time, step, utilisation",
    ),
    "because": Column("", "why evidence is no better", "run, choose, predict job, time, step, utilisation"),
    "coverage": Column("", "share of iterations that intervals are meant to hold", "predict job"),
    "iteration_low_s": Column("s", "lower end of the interval of the mean `iteration_s` over seeds", "compare, sweep"),
    "iteration_high_s": Column("s", "upper end of the interval of the mean `iteration_s` over seeds", "compare, sweep"),
    "iteration_more_s": Column(
        "s",
        "how much more the mean `iteration_s` is than that of the first, over the same seeds",
        "compare, sweep",
    ),
    "iteration_more_low_s": Column("s", "lower end of the paired interval of `iteration_more_s`", "compare, sweep"),
    "iteration_more_high_s": Column("s", "upper end of the paired interval of `iteration_more_s`", "compare, sweep"),
    "iteration_rank": Column("", "place by the mean `iteration_s`, from 1", "compare, sweep"),
    "iteration_tied": Column("", "whether it is the first by `iteration_s`, or tied with it", "compare, sweep"),
    "iteration_least_with": Column("", "number of seeds with which its `iteration_s` is the least", "compare, sweep"),
    "iteration_compared": Column("", "number of seeds that are compared", "compare, sweep"),
    **{
        f"{stem}_{key}": Column(unit, meaning.format(stem), "run")
        for stem in ("simulated", "time_to_target")
        for key, unit, meaning in (
            ("low_s", "s", "lower end of the interval of the mean `{}_s` over seeds"),
            ("high_s", "s", "upper end of the interval of the mean `{}_s` over seeds"),
            ("more_s", "s", "how much more the mean `{}_s` is than that of the first, over the same seeds"),
            ("more_low_s", "s", "lower end of the paired interval of `{}_more_s`"),
            ("more_high_s", "s", "upper end of the paired interval of `{}_more_s`"),
            ("rank", "", "place by the mean `{}_s`, from 1"),
            ("tied", "", "whether it is the first by `{}_s`, or tied with it"),
            ("least_with", "", "number of seeds with which its `{}_s` is the least"),
            ("compared", "", "number of seeds that are compared"),
        )
    },
    "accuracy_low": Column("", "lower end of the interval of the mean accuracy over seeds", "run"),
    "accuracy_high": Column("", "upper end of the interval of the mean accuracy over seeds", "run"),
    "interval.level": Column("", "how often intervals over seeds hold the mean", "run"),
    "interval.method": Column("", "what these intervals are", "run"),
    # Choices at a point.
    "question.title": Column("", "what was asked", "choose"),
    "question.method": Column("", "closed forms, or simulated", "choose"),
    "question.workers": Column("", "number of workers, or of each job of a grid", "choose"),
    "question.parameters": Column("", "entries of the gradient n", "choose"),
    "question.density": Column("", "fraction of the entries that is kept", "choose"),
    "question.latency_s": Column("s", "latency from worker to worker", "choose"),
    "question.bandwidth_Bps": Column("B/s", "bandwidth of a worker's link", "choose"),
    "question.gpus_per_node": Column("", "workers that share a node", "choose"),
    "question.device": Column("", "device profile that selects", "choose"),
    "question.barrier": Column("", "whether workers begin each iteration together", "choose"),
    "question.passes_s": Column("s", "forward and backward pass of an iteration that was given or is known", "choose"),
    "question.iterations": Column("", "iterations of the job", "choose"),
    "question.inner_steps": Column("", "inner steps that all jobs train for", "choose"),
    "question.target_accuracy": Column("", "accuracy that all jobs train for", "choose"),
    "question.seed": Column("", "seed of all draws", "choose"),
    "question.stack": Column("", "transport stack", "choose"),
    "question.prices": Column("", "prices of devices and traffic, null without", "choose"),
    "gain_over_dense": Column(
        "",
        "time of the job with the fastest dense exchange over that with the fastest compressed one",
        "choose",
    ),
    "gain_over_dense_of_exchange": Column(
        "",
        "time of the fastest dense exchange over that of the fastest compressed one",
        "choose",
    ),
    "gain_over": Column("", "the fastest dense exchange, over which the gain is", "choose"),
    "gain_over_overlapped_dense": Column("", "the same with dense beside the backward pass", "choose"),
    "backward_s": Column("s", "backward pass beside which exchanges go", "choose"),
    "compression_pays": Column("", "whether the gain over dense is above one", "choose"),
    "compression_pays_overlapped": Column("", "whether `gain_over_overlapped_dense` is above one", "choose"),
    "flips": Column("", "changes of a quantity that would make another exchange the fastest", "choose"),
    "flips.quantity": Column("", "which quantity", "choose"),
    "flips.direction": Column("", "up or down", "choose"),
    "flips.value": Column("", "value from which on", "choose"),
    "flips.exchange": Column("", "exchange that is then the fastest", "choose"),
    "selection_flips.factor": Column("", "factor from which on", "choose"),
    "selection_flips.direction": Column("", "up or down", "choose"),
    "selection_flips.exchange": Column("", "exchange that is then the fastest", "choose"),
    "elasticities.NAME": Column(
        "",
        "per cent that the time changes by for one per cent more of that quantity",
        "choose",
    ),
    "misjudged": Column("", "null: the links are not varied", "choose"),
    "misjudged.factor": Column("", "by which factor latency and bandwidth may be off", "choose"),
    "misjudged.worst_regret": Column("", "share of the time that is lost at most for it", "choose"),
    "misjudged.latency_s": Column("s", "latency at which that is", "choose"),
    "misjudged.bandwidth_Bps": Column("B/s", "bandwidth at which that is", "choose"),
    "misjudged.exchange": Column("", "exchange that is the fastest there", "choose"),
    "misjudged.holds": Column("", "whether the choice is the fastest within the factor", "choose"),
    "latency_ms": Column("ms", "latency of the cell of the map", "choose"),
    "bandwidth_Gbit_per_s": Column("Gbit/s", "bandwidth of the cell of the map", "choose"),
    # Memory of a worker.
    "memory_B": Column(
        "B",
        "the most that a worker holds at once, activations and what an allocator adds left out",
        "compare",
    ),
    **{
        name: Column("B", f"of `{whole}` {what}", commands if whole == "memory.peak_B" else "compare")
        for part, what, commands in (
            ("parameters", "parameters", "run, choose, step"),
            ("gradients", "gradients", "run, choose, step"),
            ("optimizer", "moments of the optimiser", "run, choose, step"),
            ("residual", "residual", "run, choose"),
            ("state", "state of the scheme", "run, choose"),
            ("masks", "masks", "run, choose"),
            ("outer", "outer optimiser of a training strategy", "run, choose"),
            ("in_flight", "what is in flight", "run, choose"),
            ("received", "messages", "run, choose"),
        )
        for name, whole in ((f"memory_{part}_B", "memory_B"), (f"memory.{part}_B", "memory.peak_B"))
    },
    "memory.peak_B": Column(
        "B",
        "the most that a worker holds at once, activations and what an allocator adds left out",
        "run, choose, step",
    ),
    "memory.gathered_B": Column("B", "of it parameters that were gathered", "step"),
    "memory.reduced_B": Column("B", "of it gradients that are reduced", "step"),
    "memory.limit_B": Column("B", "what a worker's device holds, null if that was not said", "run, choose"),
    "memory.assumed": Column("", "what is left out, and which optimiser is counted", "run, choose"),
    "memory": Column("", "what is left out, and which optimiser is counted", "compare"),
    "memory_limit_B": Column("B", "what a worker's device holds", "step"),
    "fits": Column("", "whether `memory.peak_B` is within the limit", "step"),
    # Messages and spans.
    "round": Column("", "round of the exchange", "run"),
    "phase": Column("", "phase of the exchange", "run"),
    "src": Column("", "worker that sends", "run"),
    "dst": Column("", "worker that receives", "run"),
    "resource": Column("", "compute or network", "run"),
    "what": Column("", "what it did", "run"),
    "at_s": Column("s", "when it happened, in simulated time", "run"),
    "waits_for": Column("", "workers that it waits for", "run"),
    "resumed_s": Column("s", "when the job went on", "run"),
    "workers_left": Column("", "workers that are left", "run"),
    "stops.NAME": Column("", "more of why the job stopped", "run"),
    # A collective.
    "ranks": Column("", "ranks of the schedule", "time"),
    "hosts": Column("", "hosts of the network", "time"),
    "rounds": Column("", "rounds of the schedule", "time"),
    "messages": Column("", "messages of the schedule", "time"),
    "sharing": Column("", "how links are shared", "time"),
    "duration_s": Column("s", "from the start until the last rank is done", "time"),
    "duration_median_s": Column("s", "median of `duration_s` as ranks enter a little apart", "time"),
    "duration_low_s": Column("s", "the least of it", "time"),
    "duration_high_s": Column("s", "the most of it", "time"),
    "duration_draws": Column("", "how often it was drawn", "time"),
    "first_rank_finish_s": Column("s", "when the first rank is done", "time"),
    "last_rank_finish_s": Column("s", "when the last rank is done", "time"),
    "bytes_B": Column("B", "sent by all ranks in the collective", "time"),
    "least_sent_B": Column("B", "sent by the rank that sends least", "time"),
    "most_sent_B": Column("B", "sent by the rank that sends most", "time"),
    "lower_bound_s": Column("s", "what the bytes of a host take at least at its bandwidth", "time"),
    "lower_bound_host": Column("", "host of which that is", "time"),
    "lower_bound_of": Column("", "that in words", "time"),
    # A training step.
    "model": Column("", "name of the model; of `calibrate` of that which times of a curve follow", "step, calibrate"),
    "sharding": Column("", "how the model is shared", "step"),
    "replicas": Column("", "groups of workers that have a whole model each", "step"),
    "parameters": Column("", "entries of the model", "step, utilisation, trace info"),
    "microbatch_s": Column("s", "forward and backward pass of a microbatch", "step"),
    "backward_fraction": Column("", "share of the backward pass in it", "step"),
    "compute_slowdown": Column("", "by which factor computing is slower beside collectives", "step"),
    "most_compute_s": Column("s", "computing in a step, of the worker that computes longest", "step"),
    "slowed_s": Column("s", "part of it that is due to `compute_slowdown`, of the worker with most", "step"),
    "source": Column("", "where the time of computing is from", "step"),
    **{
        f"steps.{part}.{key}": Column("s", meaning.format(part), "step")
        for part in ("step", "exposed")
        for key, meaning in (
            ("each_s", "`{}_s` of each step in turn"),
            ("p50_s", "its median"),
            ("p90_s", "what 90 % of the steps are below"),
            ("p99_s", "what 99 % of the steps are below"),
        )
    },
    "calls.operation": Column("", "collective that is called", "step"),
    "calls.unit": Column("", "unit of the model that it is for", "step"),
    "calls.group": Column("", "group of workers", "step"),
    "calls.ranks": Column("", "workers of the group", "step"),
    "calls.in_elements": Column("", "elements that a worker gives", "step"),
    "calls.out_elements": Column("", "elements that it gets", "step"),
    "calls.dtype": Column("", "type of an element", "step"),
    "calls.phase": Column("", "forward, backward or update", "step"),
    "calls.iteration": Column("", "which step", "step"),
    "calls.microbatch": Column("", "which microbatch", "step"),
    "calls.root": Column("", "from which worker, if from one", "step"),
    "calls.in_bytes": Column("B", "bytes that a worker gives", "step"),
    "calls.out_bytes": Column("B", "bytes that it gets", "step"),
    "calls.begin_s": Column("s", "when it began, in simulated time", "step"),
    "calls.end_s": Column("s", "when it ended, in simulated time", "step"),
    "calls.exposed_s": Column("s", "waiting for it with nothing left to compute", "step"),
    # Utilisations.
    "strategy": Column("", "training strategy", "utilisation"),
    "fragments": Column("", "fragments of the model that are exchanged in turn", "utilisation"),
    "delay": Column("", "inner steps that a fragment may take to arrive", "utilisation"),
    "bits": Column("bit", "of a value on the link", "utilisation"),
    "backward": Column("", "share of the backward pass in a step", "utilisation"),
    "buckets": Column("", "pieces in which an exchange leaves", "utilisation"),
    "passes_s": Column("s", "forward and backward pass of an inner step", "utilisation"),
    "steps_between_exchanges": Column("", "inner steps from one exchange to the next", "utilisation"),
    "off": Column("", "by how much `passes_s` and `bandwidth_Bps` may be off", "utilisation"),
    "utilisation.value": Column("", "share of the time in which workers compute", "utilisation"),
    "utilisation.low": Column("", "the least of it, by `off`", "utilisation"),
    "utilisation.high": Column("", "the most of it, by `off`", "utilisation"),
    "targets.utilisation": Column("", "utilisation that is aimed at", "utilisation"),
    "targets.bandwidth_Bps.value": Column("B/s", "bandwidth that reaches it", "utilisation"),
    "targets.bandwidth_Bps.low": Column("B/s", "the least of it, by `off`", "utilisation"),
    "targets.bandwidth_Bps.high": Column("B/s", "the most of it, by `off`", "utilisation"),
    "targets.steps_between_exchanges.value": Column(
        "",
        "inner steps from one exchange to the next that reach it",
        "utilisation",
    ),
    "targets.steps_between_exchanges.low": Column("", "the least of it, by `off`", "utilisation"),
    "targets.steps_between_exchanges.high": Column("", "the most of it, by `off`", "utilisation"),
    # Of the whole answer.
    "scenario": Column("", "name of the scenario", "compare, sweep, predict job"),
    "scenario.name": Column("", "name of the scenario", "run"),
    "scenario.sha256": Column("", "hash of the resolved scenario", "run"),
    "scenario_sha256": Column("", "hash of the resolved scenario", "compare, sweep"),
    "seeds": Column("", "seeds of the runs", "run, compare"),
    "versions.NAME": Column("", "version of a package that computes the times", "run, compare, sweep"),
    "bound": Column("", "policy that nobody can run, which bounds the others", "run"),
    "missing": Column("", "policies, or cells, that have no result", "run, sweep"),
    "refused": Column("", "exchanges that cannot do the job", "choose"),
    "warnings": Column("", "what to beware of", "choose"),
    "notes": Column("", "how costs are known, and where the time of computing is from", "predict job"),
    "zip": Column("", "whether parameters change side by side", "sweep"),
    "cells": Column("", "cells of the grid", "sweep"),
    "parameters.name": Column("", "parameter as it was given", "sweep"),
    "parameters.column": Column("", "its column", "sweep"),
    "parameters.values": Column("", "its values", "sweep"),
    "barrier": Column("", "whether workers begin each iteration together", "run, compare, sweep, predict job"),
    "device": Column("", "device profile that selects", "sweep, predict job"),
    "device.name": Column("", "device profile that selects", "run, compare"),
    "device.what": Column("", "what the device is", "run, compare"),
    "device.known.NAME": Column("", "number of kernels whose cost is known in that way", "run, compare"),
    "stack": Column("", "transport stack", "predict job, time, step, calibrate"),
    "stack.name": Column("", "transport stack", "run"),
    "stack.measured": Column("", "whether it was measured", "run"),
    "stack.properties.NAME": Column("", "property of the transport stack", "run"),
    "strategy.name": Column("", "training strategy", "run"),
    "strategy.steps": Column("", "inner steps of an iteration", "run"),
    "choices.NAME": Column("", "iterations with that exchange", "run"),
    "compute_time.seconds_s": Column(
        "s",
        "forward and backward pass, as estimated or measured",
        "run, compare, choose, step, utilisation",
    ),
    "compute_time.low_s": Column("s", "lower end of its interval", "run, compare, choose, step, utilisation"),
    "compute_time.high_s": Column("s", "upper end of its interval", "run, compare, choose, step, utilisation"),
    "compute_time.batch": Column("", "samples of a worker in an iteration", "run, compare, choose, step, utilisation"),
    "compute_time.precision": Column("", "precision of the values", "run, compare, choose, step, utilisation"),
    "compute_time.known": Column("", "measured, scaled or estimated", "run, compare, choose, step, utilisation"),
    "compute_time.source": Column("", "where it is from", "run, compare, choose, step, utilisation"),
    "overlap.during": Column("", "exchanges that go bucket by bucket during the backward pass", "run, compare, choose"),
    "overlap.after": Column("", "exchanges that begin after it", "run, compare, choose"),
    "overlap.default": Column("", "whether the scenario leaves that open", "run, compare, choose"),
    "overlap.first": Column("", "exchange that a sample of iterations has first", "run, compare, choose"),
    "overlap.otherwise": Column("", "exchange that it has first under the other assumption", "run, compare, choose"),
    "overlap.lead": Column("", "by which factor that one is then ahead", "run, compare, choose"),
    "overlap.undecided": Column("", "whether the sample does not tell", "run, compare, choose"),
    "depends_on.field": Column("", "field whose default is assumed", "compare, choose"),
    "depends_on.value": Column("", "the default", "compare, choose"),
    "depends_on.other": Column("", "the value that was tried", "compare, choose"),
    "depends_on.first": Column("", "exchange that is then first, null if the same", "compare, choose"),
    "depends_on.lead": Column("", "by which factor it is then ahead", "compare, choose"),
    "depends_on.undecided": Column("", "whether a sample does not tell", "compare, choose"),
    # Calibrations, and what is predicted of a collective.
    "seconds": Column("s", "predicted time of the collective", "predict"),
    "low": Column("s", "lower end of its interval", "predict"),
    "high": Column("s", "upper end of its interval", "predict"),
    "extrapolates": Column("", "whether that is beyond what was measured", "predict"),
    "why": Column("", "what the prediction rests on, in words", "predict"),
    "rows": Column("", "measurements that were read", "calibrate"),
    "curves": Column("", "curves of times by size that they make", "calibrate"),
    "problems": Column("", "what was left out, and why", "calibrate"),
    "mixed.NAME": Column("", "values of a column of which several were put together", "calibrate"),
    "across_ranks": Column("", "model of times across numbers of ranks", "calibrate"),
    **{
        f"{held}.{key}": Column("", meaning, "calibrate")
        for held in ("held_out_sizes.NAME", "held_out_ranks")
        for key, meaning in (
            ("count", "predictions of what was left out, by each model"),
            ("median", "by which part of the measured time they were off, median"),
            ("p90", "what 90 % of these parts are below"),
            ("worst", "the largest of them"),
        )
    },
    "held_out_collectives": Column("", "the same of collectives, null with one alone", "calibrate"),
    **{
        f"steps.{name}": Column("", "parameter of the model of steps: seconds, or a factor", "calibrate")
        for name in (
            *("launch", "inner_latency", "outer_latency", "inner_seconds_per_byte", "outer_seconds_per_byte", "gamma"),
            *("ll128_latency_factor", "simple_latency_factor", "ll_byte_factor", "ll128_byte_factor"),
            *("tree_latency_factor", "tree_byte_factor", "peer_latency", "peer_byte_factor", "pair_byte_factor"),
            "switch_byte_factor",
        )
    },
    "cards_of_a_node.number": Column("", "network cards of a node, null if not known", "calibrate"),
    "cards_of_a_node.chance": Column("", "how likely that number is", "calibrate"),
    "network": Column("", "topology that the ranks were on, null if not said", "calibrate"),
    "stack_told_by_logs": Column("", "transport stack that the logs tell", "calibrate"),
    "eager": Column("", "whether all messages were sent eagerly", "calibrate"),
    "jitter": Column("", "how much repetitions scatter, null with too few", "calibrate"),
    "repetitions": Column("", "repetitions that were read", "calibrate"),
    "platform.NAME": Column("", "field of the platform's specification", "calibrate"),
    "mean": Column("s", "mean time of computing", "calibrate compute"),
    "spread": Column("", "standard deviation of its logarithm", "calibrate compute"),
    "straggle": Column("", "chance that a worker straggles in an iteration", "calibrate compute"),
    "slow.NAME": Column("", "factor of a worker that is always slower", "calibrate compute"),
    **{
        f"of_iterations_left_out.{what}.p{percent}_s": Column(
            "s", f"what {percent} % of the iterations left out are below, {what}", "calibrate compute"
        )
        for what in ("measured", "fitted")
        for percent in (50, 90, 99)
    },
    # Traces.
    "name": Column("", "name of the trace", "trace info, trace fit"),
    "entries": Column("", "entries of the gradient that are looked at", "trace info"),
    "points": Column("", "iterations that were recorded", "trace info"),
    "steps": Column("", "which iterations those are", "trace info, trace fit"),
    "dtypes": Column("", "types of the entries", "trace info"),
    "tail_index": Column("", "exponent with which the largest magnitudes become rare", "trace info"),
    "tail_share": Column("", "share of the entries from which that is", "trace info"),
    "densities.density": Column("", "fraction that top-k keeps", "trace info, trace fit"),
    "densities.selected": Column("", "entries that are then kept", "trace fit"),
    **{
        f"densities.{name}{key}": Column("", meaning + more, command)
        for name, meaning, commands in (
            ("gain", "share of the gradient's norm that is kept", "trace info, trace fit"),
            ("build_up", "different entries that all workers keep, over those of one", "trace info, trace fit"),
            ("overlap_workers", "share of the entries that two workers both keep", "trace info, trace fit"),
            ("threshold", "least magnitude that is kept, in root mean squares", "trace info, trace fit"),
            ("overlap_next", "share that is kept again in the next iteration", "trace info"),
            ("overlap_time", "share that is kept again at the next point", "trace info, trace fit"),
            ("overlap_first_last", "share that is kept at the first and the last point", "trace info"),
            ("threshold_drift", "threshold at the last point over that at the first", "trace fit"),
        )
        for command in commands.split(", ")
        for key, more in (FITTED if command == "trace fit" else (("", ""),))
    },
    "curve.density": Column("", "densities at which gains are compared", "trace fit"),
    "curve.real": Column("", "gains of the trace", "trace fit"),
    "curve.synthetic": Column("", "gains of the synthetic gradients", "trace fit"),
    "thresholds.density": Column("", "density of these thresholds", "trace fit"),
    "thresholds.real": Column("", "thresholds of the trace, over the first", "trace fit"),
    "thresholds.synthetic": Column("", "thresholds of the synthetic gradients, over the first", "trace fit"),
    "layers.name": Column("", "name of the layer", "trace info"),
    "layers.shape": Column("", "its shape", "trace info"),
    "layers.entries": Column("", "its entries", "trace info"),
    "layers.rms": Column("", "root mean square of its gradient", "trace info"),
    "layers.share": Column("", "share of the gradient's square that it has", "trace info"),
    "layers.zeros": Column("", "share of its entries that are zero", "trace info"),
    "layers.tail_index": Column("", "`tail_index` of the layer", "trace info"),
    # Tables for run time.
    "version": Column("", "of the format", "choose --export"),
    "made_for.NAME": Column("", "what the table was made for, as `choose` was asked", "choose --export"),
    "edges.latency_s": Column("s", "latencies of the rows of `matrix`", "choose --export"),
    "edges.bandwidth_B_per_s": Column("B/s", "bandwidths of its columns", "choose --export"),
    "choices.label": Column("", "exchange, by its number in `matrix`", "choose --export"),
    "choices.scheme": Column("", "name of its scheme", "choose --export"),
    "choices.options.NAME": Column("", "an option of the scheme", "choose --export"),
    "choices.kind": Column("", "dense, sparse, or what else it is", "choose --export"),
    "choices.density": Column("", "fraction of the entries that it keeps", "choose --export"),
    "gains": Column("", "gain by density, null with one density alone", "choose --export"),
    "regret.points": Column("", "points at which the table was held against the question itself", "choose --export"),
    "regret.mean": Column("", "share of the time that is lost there for it, mean", "choose --export"),
    "regret.worst": Column("", "the largest", "choose --export"),
    "regret.latency_s": Column("s", "latency at which that is", "choose --export"),
    "regret.bandwidth_B_per_s": Column("B/s", "bandwidth at which that is", "choose --export"),
    "regret.same_exchange": Column("", "share at which the table has the same exchange", "choose --export"),
    "regret.same_density": Column("", "share at which it has the same density", "choose --export"),
    "matrix": Column("", "number of the exchange, by latency and bandwidth", "choose --export"),
}
"""The columns by their names, in the order in which they are explained."""
