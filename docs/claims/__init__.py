"""Judge the paper's claims by what `fewmore reproduce` has measured.

`judge` holds the rules, `evidence` reads the results; each study has a file with its comparisons.
May import fewmore, not `sections`. Start at `paper.py`, the list of all claims.
"""
