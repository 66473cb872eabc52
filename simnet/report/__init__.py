"""Output of a run: a summary, a console table, figures, an HTML page, a timeline.

Everything here turns plain tables into bytes or text; `simnet.report.results` puts them into files of the run folder.
"""
