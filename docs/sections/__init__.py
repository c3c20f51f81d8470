"""Write the generated parts of README.md and docs/*.md as Markdown.

A function per part, in a file per source: results, studies, gaps, speed, listings of the code.
May import fewmore and `claims`. Start at `docs/make.py`, which names all parts.
"""
