"""Compare CEC with different pseudo-incremental episodes: rotation angles, ways and shots."""

from claims.evidence import PAPERS, Evidence, best_of, mean_of, side
from claims.judge import AVERAGE, LAST, PD, Comparison, Measure, Side, is_best
from fewmore.research import published
from fewmore.research.studies.rotation import ANGLES
from fewmore.research.studies.ways_shots import GRID, QUERIES

LARGE = ("180°", "±90°")
SMALL = ("±20°", "±10°", "±5°")
MIX = "90°, 180°, 270°"
PAPER_CELL = (15, 1)  # ways and shots of the paper's best cell


def rotation(evidence: Evidence) -> list[Comparison]:
    """Compare large with small angles, and the mix of large ones with the best single set."""
    return [
        comparison
        for benchmark in evidence.benchmarks("rotation")
        for measure in (AVERAGE, PD)
        for comparison in _rotation(evidence, benchmark, measure)
    ]


def _rotation(evidence: Evidence, benchmark: str, measure: Measure) -> list[Comparison]:
    rows = evidence.rows("rotation", benchmark)
    sides = {}
    for label, angles in ANGLES.items():
        settings = {"pseudo.angles": angles} if angles else {}
        sides[label] = side(label, rows, measure, "cec", settings, None)
    large, small = (
        mean_of(f"mean of {', '.join(labels)}", [sides[label] for label in labels])
        for labels in (LARGE, SMALL)
    )
    published_cec = published.published(PAPERS)["CEC"]
    mix = Side(f"the mix of {MIX}", sides[MIX].runs, measure.published(published_cec))
    single = [row for label, row in sides.items() if label != MIX]
    return [
        evidence.compare(benchmark, large, small, measure),
        evidence.compare(benchmark, mix, best_of(single, measure), measure),
    ]


def ways_shots(evidence: Evidence) -> list[Comparison]:
    """Compare halves of the grid without its middle, and the paper's best cell with all others."""
    return [
        comparison
        for benchmark in evidence.benchmarks("ways-shots")
        for comparison in _ways_shots(evidence, benchmark)
    ]


def _ways_shots(evidence: Evidence, benchmark: str) -> list[Comparison]:
    cells = _grid_sides(evidence, benchmark)
    few, many = GRID[:2], GRID[-2:]

    def half(axis: int, sizes: tuple[int, ...], unit: str) -> Side:
        chosen = [row for cell, row in cells.items() if cell[axis] in sizes]
        return mean_of(f"{sizes[0]} and {sizes[1]} {unit}", chosen)

    best = best_of([row for cell, row in cells.items() if cell != PAPER_CELL], LAST)
    return [
        evidence.compare(benchmark, half(0, many, "ways"), half(0, few, "ways"), LAST),
        evidence.compare(benchmark, half(1, few, "shots"), half(1, many, "shots"), LAST),
        evidence.compare(benchmark, cells[PAPER_CELL], best, LAST, is_best),
    ]


def _grid_sides(evidence: Evidence, benchmark: str) -> dict[tuple[int, int], Side]:
    rows = evidence.rows("ways-shots", benchmark)
    cells = {}
    for way in GRID:
        for shot in GRID:
            sizes = {"way": way, "shot": shot, "query": QUERIES}
            settings = {
                f"pseudo.{group}_{name}": str(size)
                for name, size in sizes.items()
                for group in ("base", "new")
            }
            cells[way, shot] = side(_cell_name(way, shot), rows, LAST, "cec", settings, None)
    return cells


def _cell_name(way: int, shot: int) -> str:
    return f"{way} way{'s' if way > 1 else ''}, {shot} shot{'s' if shot > 1 else ''}"
