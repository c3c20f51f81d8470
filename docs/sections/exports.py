"""Write how far exported files agree with the classifier, from results/bench-export-cpu.json."""

from sections import recorded
from sections.markdown import paragraph


def agreement() -> str:
    """Write the measurement in a few sentences."""
    measured = recorded.read_benchmark(recorded.RESULTS / "bench-export-cpu.json")
    by_float, by_int8 = measured["rows"]
    about = measured["about"]
    pixels = about["pixel values that differ, %"]
    class_, answer = "same class, %", "same answer with none of these, %"
    accepted, rejected = "known photos accepted, %", "unknown photos rejected, %"
    text = (
        f"Measured on {by_float['photos']:,} photos of birds that were not learnt, with "
        f"mobilenet_v2 and {about['classes']} classes. Of the pixel values of every "
        f"tenth photo, {pixels:.1g} % differ, "
        f"by {about['largest difference of a pixel, of 255']} of 255 at most. The file names the "
        f"same class for {by_float[class_]:.1f} % of the photos, and gives the same answer with "
        f'"none of these" for {by_float[answer]:.1f} %; confidences differ by '
        f"{by_float['largest difference of a confidence']:.3f} at most. In int8 these are "
        f"{by_int8[class_]:.1f} % and {by_int8[answer]:.1f} %: {by_int8['accuracy, %']:.1f} % of "
        f"the known photos are right instead of {by_float['accuracy, %']:.1f} %, "
        f"{by_int8[accepted]:.1f} instead of {by_float[accepted]:.1f} % accepted, "
        f"and {by_int8[rejected]:.1f} instead of "
        f"{by_float[rejected]:.1f} % of the unknown ones rejected. The file has "
        f"{by_int8['megabytes']:.1f} instead of {by_float['megabytes']:.1f} MB, and a photo takes "
        f"{by_int8['median ms']:.1f} ms in int8, {by_float['median ms']:.1f} in float. The unknown "
        "photos are of other birds: one kind is not told well from another that was never shown. "
        f"{measured['machine']}, {measured['date']}: `{measured['command']}`"
    )
    return paragraph(text) + "\n"
