"""Write measurements of speed, memory and calibration from results/bench-*.json."""

from sections import heads, recorded
from sections.markdown import UNMEASURED, bullet, markdown_table, paragraph, short

# Minutes that a seed of CIFAR100 was to take at most.
TARGETS = {"teen": 3, "s3c": 3, "closer": 3, "evolve": 3, "motic": 5, "savc": 10}
TITLES = {"bar": "target"}  # what a column of a record is called in the docs


def bench(name: str) -> str:
    """Write the rows that a script in benchmarks/ has recorded, a table per machine."""
    parts = []
    for path in sorted(recorded.RESULTS.glob(f"bench-{name}-*.json")):
        measured = recorded.read_benchmark(path)
        columns = list(dict.fromkeys(column for row in measured["rows"] for column in row))
        rows = [[short(row.get(column, "")) for column in columns] for row in measured["rows"]]
        lines = [
            f"{measured['machine']}, {measured['date']}: `{measured['command']}`",
            "",
            *markdown_table([TITLES.get(column, column) for column in columns], rows),
        ]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts) if parts else UNMEASURED


def stage1_targets() -> str:
    """Say which feature recipes take longer in stage 1 alone than a whole seed was to take."""
    rows = recorded.read_benchmark(recorded.RESULTS / "bench-stage1-gpu.json")["rows"]
    seconds = {row["features"]: row["stage 1 s"] for row in rows if row["benchmark"] == "cifar100"}
    known = {name: seconds[name] for name in TARGETS if name in seconds}
    above = [
        f"`{name}` ({taken:,.0f} of {60 * TARGETS[name]:,})"
        for name, taken in known.items()
        if taken > 60 * TARGETS[name]
    ]
    below = [
        f"`{name}` ({taken:,.0f} of {60 * TARGETS[name]:,})"
        for name, taken in known.items()
        if taken <= 60 * TARGETS[name]
    ]
    text = (
        "Seconds of stage 1 beside the target for a whole seed of CIFAR100. Stage 1 alone takes "
        f"longer for {', '.join(above)}; it takes less for {', '.join(below)}, which leaves the "
        "rest for loading, sessions and testing."
    )
    return paragraph(text) + "\n"


def stream() -> str:
    """Write what came of a stream of images that was killed on the way."""
    path = recorded.RESULTS / "bench-stream-cpu.json"
    if not path.exists():
        return UNMEASURED
    measured = recorded.read_benchmark(path)
    about, runs = measured["about"], measured["rows"]
    text = (
        f"{about['images']:,} images of 32 × 32 pixels in shards of {about['shards of']:,}, one in "
        f"{about['images'] // about['damaged images']:,} damaged, predicted by a "
        f"{about['backbone']} with {about['classes']} classes: the command was killed "
        f"{len(runs) - 1} times on the way, and started again. In the end "
        f"{about['rows that are right, in order']:,} rows are those of the images, in their order, "
        f"{about['rows with an error']} of them with an error. All processes together had at most "
        f"{about['peak megabytes']:.0f} MB of memory, where {about['limit, megabytes']:,} are "
        "allowed."
    )
    if about["beside other work"]:
        text += " Other work ran beside it, so the times say little."
    return f"{paragraph(text)}\n\n{bench('stream')}"


def one_seed() -> str:
    """Write in one sentence how long the paper's method takes."""
    measured = recorded.read_benchmark(recorded.RESULTS / "bench-oneseed-gpu.json")
    first, second = (row["from start to end s"] for row in measured["rows"])
    text = (
        f"One seed of CEC on CIFAR100 with unchanged settings takes {second:.0f} s from the typed "
        f"command to the drawn report, and {first:.0f} s the first time on a machine "
        f"({measured['machine']}, {measured['date']}: `{measured['command']}`)."
    )
    return paragraph(text) + "\n"


def confidences() -> str:
    """Write how far confidences and "none of these" can be trusted as classes are added."""
    birds = heads.rows_of("additions", "plain")
    scratch = recorded.read_benchmark(recorded.RESULTS / "bench-calibration-gpu.json")
    about = scratch["about"]
    first, *_, before_last, last = scratch["rows"]  # no class is unknown after the last session
    base = first["classes"]
    classes = last["classes"]
    accepted, rejected = (
        [row[key] for row in (birds[0], birds[-1])] for key in ("known accepted", "unseen rejected")
    )
    known = "accepted as known %"
    auroc = "AUROC of classes to come"
    items = (
        f"Confidences stay calibrated. Trained on {base} classes of CIFAR100, and taught "
        f"{classes - base} more from five images each, the expected calibration error on test "
        f"images of all {classes} classes is {about['last session, calibrated %']:.1f} %; "
        f"uncalibrated it is {about['last session, uncalibrated %']:.1f} %.",
        'The threshold of "none of these" follows the number of classes. With `mobilenet_v2`, '
        f"{accepted[0]:.0f} % of test photos of 20 known birds are accepted, and {accepted[1]:.0f} "
        f"% of those of {20 + birds[-1]['added']} after the others were learnt one by one from "
        "five photos each. But one bird is not told well from another that was never shown: "
        f"{rejected[0]:.0f} % of photos of ten such classes are rejected at first, and "
        f"{rejected[1]:.0f} % in the end, where the AUROC is {birds[-1]['auroc']:.2f}.",
        "It is not reliable with a small network trained from scratch: on CIFAR100, from "
        f"{base} classes to {classes}, the share of known images that are accepted drifts from "
        f"{first[known]:.0f} % to {last[known]:.0f} %, and the AUROC against classes of later "
        f"sessions falls from {first[auroc]:.2f} to {before_last[auroc]:.2f}, where 0.5 is "
        "chance: in the end nearly every image is accepted. Do not rely on "
        '"none of these" there after adding many classes.',
    )
    return "\n".join(map(bullet, items)) + "\n"


def demo() -> str:
    """Quote what `make demo` printed."""
    return _quote("demo.txt")


def output(name: str) -> str:
    """Quote what docs/outputs.py wrote."""
    return _quote(f"outputs/{name}.txt")


def doctor() -> str:
    """Quote `fewmore doctor` without the list of packages."""
    text = output("doctor")
    return text[: text.index("\n", 8)] + "\n…\n" + text[text.index("Devices\n") :]


def _quote(name: str) -> str:
    path = recorded.RESULTS / name
    if not path.exists():
        return "Not run yet.\n"
    return f"```text\n{recorded.read_text(path).rstrip()}\n```\n"
