"""Turn results into tables, figures and HTML reports.

May import research, classifier.calibration and data; only figures/ imports matplotlib.
Start at tables.py; formats.py writes tables as CSV, Markdown and LaTeX, html.py writes report.html.
"""
