"""Output of runs: summaries, console tables, figures, HTML pages and timelines.

Everything here turns plain tables into bytes or text; `simnet.report.results` puts them into files of the run folder.
"""
