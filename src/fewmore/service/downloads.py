"""Write files of the model for downloads: one for each version, shared by all who want it."""

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path

from fewmore.classifier.estimator import IncrementalClassifier

Writer = Callable[[IncrementalClassifier, Path], object]


class Copy:
    """Hold a file until the last one has read it and another version replaces it."""

    def __init__(self, classifier: IncrementalClassifier, name: str) -> None:
        self.classifier = classifier
        self.users = 1  # one of them is `Downloads`
        self._folder = tempfile.TemporaryDirectory(prefix="fewmore-")
        self.path = Path(self._folder.name) / name

    def write(self, writer: Writer) -> None:
        """Write the file. A classifier never changes, so any thread may do it."""
        try:
            writer(self.classifier, self.path)
        except BaseException:
            self._folder.cleanup()
            raise

    async def release(self) -> None:
        """Count one user less; remove the file behind the last one."""
        self.users -= 1
        if not self.users:
            self._folder.cleanup()


class Downloads:
    """Keep the file of the latest version that was asked for."""

    def __init__(self, name: str, writer: Writer) -> None:
        self._name = name
        self._writer = writer
        self._latest: Copy | None = None
        self._writing = asyncio.Lock()

    async def copy_of(self, classifier: IncrementalClassifier) -> Copy:
        """Return a copy, to be released after use."""
        async with self._writing:
            latest = self._latest
            if latest is None or latest.classifier is not classifier:
                copy = Copy(classifier, self._name)
                await asyncio.to_thread(copy.write, self._writer)
                if latest is not None:
                    await latest.release()
                self._latest = latest = copy
            latest.users += 1
            return latest

    async def close(self) -> None:
        """Remove the copy."""
        if self._latest is not None:
            await self._latest.release()
            self._latest = None


def write_onnx(classifier: IncrementalClassifier, path: Path) -> None:
    """Export a classifier to one ONNX file, on the CPU."""
    from fewmore.classifier.one_file import to_onnx_file

    if classifier.embedder.device.type != "cpu":
        model = path.with_suffix(".fewmore")
        classifier.save(model)
        classifier = IncrementalClassifier.load(model, "cpu")
    to_onnx_file(classifier, path)
