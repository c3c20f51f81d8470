"""Write what published numbers contain, and which of them can be compared."""

from fewmore.research import published
from fewmore.research.published import BEST_ON_TEST, LAST_EPOCH, Contents
from sections import recorded
from sections.markdown import bullet, italic, markdown_table, paragraph

NAMES = {"cifar100": "CIFAR100", "miniimagenet": "miniImageNet", "cub200": "CUB200"}


def accuracies(benchmark: str) -> str:
    """Write the published rows of a benchmark, by last accuracy, with what they contain."""
    titles = (
        "method",
        "year",
        "backbone, stem",
        "parameters",
        "epoch",
        "test views",
        "images kept",
        "extra data",
        "*last*",
        "*average*",
    )
    rows = sorted(_rows(benchmark), key=lambda row: row[0] or 0.0, reverse=True)
    return "\n".join(markdown_table(titles, [cells for _, cells in rows], "lrlrlrllrr")) + "\n"


def _rows(benchmark: str) -> list[tuple[float | None, list[str]]]:
    """Return the last accuracy and the cells of each row that was published or is described."""
    rows = []
    for about in published.contents():
        for method in about.methods:
            last, average = published.accuracy_of(method, about, benchmark)
            if last is not None or benchmark in about.backbones:
                described = _described(about, benchmark)
                rows.append((last, [method, *described, italic(last), italic(average)]))
    return rows


def _described(about: Contents, benchmark: str) -> list[str]:
    backbone = published.backbones()[about.backbones.get(benchmark, published.UNKNOWN)]
    views = about.views.get(benchmark)
    return [
        str(about.year or "unknown"),
        f"{backbone.name}, {backbone.stem}" if backbone.stem != backbone.name else backbone.name,
        millions(backbone.parameters),
        about.selection,
        str(views or "unknown"),
        about.exemplars,
        about.extra_data,
    ]


def millions(parameters: int | None) -> str:
    """Format a number of parameters."""
    if parameters is None:
        return "unknown"
    return f"{parameters / 1e6:.{1 if parameters > 1e6 else 2}f} M"


def programs() -> str:
    """Write where the facts were read, and the known problems of each method."""
    titles = ("method", "program", "read at", "known problems", "taken over, not checked again")
    rows = [
        [
            ", ".join(about.methods),
            _link(about.repository),
            about.commit or "–",
            about.problems or "–",
            about.taken_over or "–",
        ]
        for about in published.contents()
    ]
    return "\n".join(markdown_table(titles, rows)) + "\n"


def _link(repository: str | None) -> str:
    return f"[{repository}](https://github.com/{repository})" if repository else "unknown"


def comparable() -> str:
    """Say for each benchmark which published rows can be set beside a run of fewmore."""
    items = []
    for benchmark, name in NAMES.items():
        free, chosen_on_test = [], []
        for about in published.contents():
            obstacles = about.obstacles(benchmark)
            measured = []
            for method in about.methods:
                last, average = published.accuracy_of(method, about, benchmark)
                if last is not None:
                    measured.append(method)
                elif average is not None:
                    measured.append(f"{method} (its average alone)")
            if not obstacles:
                free += measured
            elif obstacles == [f"epoch {BEST_ON_TEST}"]:
                chosen_on_test += measured
        items.append(
            f"{name}: {', '.join(free) or 'no published row'}. With an epoch chosen on test and "
            f"otherwise alike: {', '.join(chosen_on_test) or 'none'}."
        )
    return "\n".join(map(bullet, items)) + "\n"


def selection() -> str:
    """Count how the programs choose the epoch that they test."""
    # Of several rows of one program, such as a method on two networks, one is counted.
    read = {
        (about.repository, about.commit): about for about in published.contents() if about.commit
    }.values()
    counts = {
        way: [about.methods[-1] for about in read if about.selection == way]
        for way in (BEST_ON_TEST, LAST_EPOCH)
    }
    unclear = len(read) - sum(map(len, counts.values()))
    text = (
        f"Of {len(read)} programs that were read, {len(counts[BEST_ON_TEST])} test the epoch that "
        f"is best on the test images, {len(counts[LAST_EPOCH])} the last epoch "
        f"({', '.join(counts[LAST_EPOCH])}); in {unclear} it does not show."
    )
    return paragraph(text) + "\n"


def batch_leak() -> str:
    """Write what features are worth that depend on the other images of a test batch."""
    measured = recorded.read_benchmark(recorded.RESULTS / "bench-batch_leak-cpu.json")
    rows = measured["rows"]
    honest, in_order, shuffled = (
        sum(row[column] for row in rows) / len(rows)
        for column in ("honest %", "batches in class order %", "shuffled batches %")
    )
    again, other = (
        sum(row[column] for row in rows)
        for column in ("images scored again", "of them, other scores")
    )
    text = (
        f"On made-up features of {measured['about']['classes']} classes, where honest scores are "
        f"right on {honest:.1f} % of the test images, this mixing gives {in_order:.1f} % in "
        f"batches of one class and {shuffled:.1f} % in shuffled batches (means of {len(rows)} "
        f"seeds, `{measured['command']}`, {measured['date']}). Scored again in another batch, "
        f"{other} of {again} images got other scores."
    )
    return paragraph(text) + "\n"
