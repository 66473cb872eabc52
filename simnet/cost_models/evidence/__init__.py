"""Errors of predictions against measurements, and the intervals and probabilities that follow.

A figure has one of three levels: *measured*, if predictions of its kind were held against measurements under conditions
that enclose its own; *extrapolated*, if under others, which are named; *assumed*, if never.
"""
