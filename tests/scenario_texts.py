"""Scenario texts that several tests start from."""

DENSE_AND_AG = """\
exchanges:
  dense: {scheme: dense}
  AG: {scheme: topk}
policies:
  dense: {fixed: dense}
  AG: {fixed: AG}
"""

SMALL = """\
workers: 4
network:
  topology:
    star: {hosts: 6, latency: 1 ms, bandwidth: 1 Gbit/s}
  stack: ideal
  sharing: max_min
job: {parameters: 4000, iterations: 2, density: 0.5, compute: {mean: 1 ms}}
exchanges:
  dense: {scheme: dense}
policies:
  dense: {fixed: dense}
output: {report: false}
"""

TRAINING = """
workers: 2
network: {topology: {star: {latency: 1 ms, bandwidth: 1 Mbit/s}}}
job:
  gradients:
    train:
      model: logistic
      data: {classification: {samples: 200, features: 8, classes: 3, noise: 1.0}}
      evaluate: 2
      target: TARGET
  iterations: 10
  density: 10 %
  compute: {mean: 10 ms}
exchanges: {dense: {scheme: dense}, AG: {scheme: topk}}
policies: {dense: {fixed: dense}, AG: {fixed: AG}}
"""
