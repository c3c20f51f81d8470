"""Derive independent random streams from a run's seed.

All randomness of a run comes from (seed, stage, round), so a run that resumes at a round repeats
it exactly.
"""

import hashlib


def derive_seed(*parts: object) -> int:
    """Return a seed that depends on all parts and on nothing else, the same in every process."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:7], "big")
