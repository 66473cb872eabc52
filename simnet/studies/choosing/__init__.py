"""Choosing offline: which exchange is fastest on a network, by how much, and what would change that.

================= ====================================================================================================
request           the flags, and the scenario whose job they describe
answer            the decision that a request asks for
problem           exchanges by themselves: where, among which, and the time of each
operating_point   the job and the links
choices           the exchanges, with closed forms
sampled_exchanges exchanges of sampled gradients, of which no formula says what they send
cost_models       the time of an exchange: by closed forms, on a calibrated cluster, or simulated
decision          the ranking, its margin, flips, and the regret if the network is misjudged
memory_filter     what a worker holds, and which exchanges a device rules out
win_probability   the probability of each exchange to be the fastest
whole_job         the time of a scenario's job with each exchange, simulated; forecast has its records
job_flips         what changes the first place of a job
job_grid          jobs of a grid, ranked
output            decisions as sentences, a table and figures; job_output those on jobs
maps, map_page    where the decision flips, over two quantities
policy            a table by latency and bandwidth, to be looked up while a job runs; policy_file is its file
================= ====================================================================================================
"""
