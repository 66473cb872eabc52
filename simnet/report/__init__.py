"""What a run shows of itself: a summary, a console table, figures, an HTML page, a timeline.

Everything here turns plain tables into bytes or text and opens no file for writing; `simnet.results` puts what comes out
into the run folder.
"""
