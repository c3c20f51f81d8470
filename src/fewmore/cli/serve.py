"""`fewmore serve`: a classifier behind HTTP, with a page to teach it in."""

import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fewmore.cli.terminal import plain, stages
from fewmore.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

DEMO = "glyphs-demo-2.fewmore"  # the number grows with what and how it is trained
DEMO_IMAGES = 50  # a class, from each half of the fonts
DEMO_EPOCHS = 10
DEMO_RATE = 0.01  # at the quick recipe's, which is for milder distortions, some seeds learn nothing
DEMO_THUMBNAILS = 3  # a class


def serve(
    model: Annotated[
        Path | None,
        typer.Argument(
            metavar="MODEL", help="A model file, such as birds.fewmore.", show_default=False
        ),
    ] = None,
    demo: Annotated[
        bool,
        typer.Option("--demo", help="Serve a model of drawn characters, trained the first time."),
    ] = False,
    host: Annotated[
        str, typer.Option(help="The address to listen at; others than this machine take a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any that is free.")] = 8000,
    token: Annotated[
        str | None,
        typer.Option(
            help="What changes are allowed with; else $FEWMORE_TOKEN, else drawn where one is needed.",
            show_default=False,
        ),
    ] = None,
    private: Annotated[
        bool, typer.Option("--private", help="Reading takes the token as well.")
    ] = False,
    thumbnails: Annotated[
        bool,
        typer.Option("--thumbnails/--no-thumbnails", help="Keep small copies of taught images."),
    ] = True,
) -> None:
    """Serve a model over HTTP, with a page to teach it in.

    What is taught is on the disk before it is answered, beside the model file, and in the model file soon after.

    Example: fewmore serve birds.fewmore

    Example: fewmore serve --demo
    """
    if (model is None) != demo:
        raise ConfigError(
            "give a model file, as in fewmore serve birds.fewmore, or --demo, and not both"
        )
    token = token or os.environ.get("FEWMORE_TOKEN") or None
    if token is not None and (
        len(token) < 8 or not token.isascii() or not token.isprintable() or " " in token
    ):
        raise ConfigError(
            "the token must have at least 8 characters: letters, digits and signs, without spaces"
        )
    try:
        from fewmore.service.app import create_app
        from fewmore.service.guard import LOOPBACK, Access
        from fewmore.service.server import keep_memory, listening
        from fewmore.service.server import serve as answer
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"serving takes some more packages ({error.name} is missing): pip install 'fewmore[service]'"
        ) from error
    import torch

    from fewmore.service.store import Store

    keep_memory()
    out = plain()
    local = host in LOOPBACK
    if token is None and (private or not local):
        token = secrets.token_urlsafe(24)
    store = Store(_demo(out, thumbnails) if model is None else model, thumbnails)
    torch.set_num_threads(1)  # each worker computes on a core of its own
    access = Access(token, private, hosts=tuple({*LOOPBACK, host.lower()}) if local else None)
    app = create_app(store, access, demo=demo)
    try:
        at = listening(host, port)
    except ConfigError:
        store.close()
        raise
    shown, number = f"[{host}]" if ":" in host else host, at.getsockname()[1]
    out.print(
        f"fewmore is served at http://{shown}:{number}/{'' if token is None else f'#token={token}'}"
    )
    if token is not None:
        out.print(
            f"{'all requests' if private else 'changes'} need the token, which is in that address: give it to nobody whom you do not trust"
        )
    if not local:
        out.print(
            "note: this is plain HTTP, and others on the way can read it: put a server with TLS before it outside of your own network"
        )
    out.print("open it in a browser; Ctrl+C ends it")
    answer(app, at)


def _demo(out: "Console", thumbnails: bool) -> Path:
    """The model of drawn characters: trained the first time, afterwards found in the data folder."""
    from fewmore.classifier.model_file import locked
    from fewmore.data.files import data_root

    path = data_root() / "demo" / DEMO
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        with locked(path, patience=600):  # another process may be training it
            if not path.exists():
                _train_demo(out, path, thumbnails)
    return path


def _train_demo(out: "Console", path: Path, thumbnails: bool) -> None:
    """Characters in all fonts, distorted further than the benchmark's, because hands draw more freely than printers."""
    from dataclasses import replace

    from fewmore.classifier.embedding import fingerprint, square
    from fewmore.classifier.estimator import IncrementalClassifier
    from fewmore.data import glyphs
    from fewmore.data.benchmarks import BENCHMARKS
    from fewmore.research.recipes import quick
    from fewmore.service.store import thumbnail_folder
    from fewmore.service.thumbnails import Thumbnails

    benchmark = BENCHMARKS["glyphs"]
    freely = replace(glyphs.DIFFICULTY, turn=15.0, stretch=0.25, largest=0.9, stroke=4, noise=0.05)
    recipe = quick(benchmark, "cec")
    recipe = replace(
        recipe,
        pretrain=replace(
            recipe.pretrain, epochs=DEMO_EPOCHS, milestones=(DEMO_EPOCHS * 3 // 4,), lr=DEMO_RATE
        ),
    )
    out.print("the demo's model is trained once, which takes a few minutes:")
    with stages(out) as progress:
        halves = [
            glyphs.draw(
                split,
                DEMO_IMAGES,
                on_progress=lambda done, total: progress("drawing characters", done, total),
                difficulty=freely,
            )
            for split in (
                "train",
                "test",
            )  # the names of the halves that the fonts come in: all of them train here
        ]
        numbers = range(DEMO_IMAGES)  # a half's images lie class by class
        images = {
            name: [
                half.image(label * DEMO_IMAGES + number) for half in halves for number in numbers
            ]
            for label, name in enumerate(glyphs.CLASSES[: benchmark.base])
        }
        classifier = IncrementalClassifier(weights=None, recipe=recipe).fit(images, progress)
    if thumbnails:
        kept = Thumbnails(thumbnail_folder(path))
        for own in images.values():
            seen = [square(image, "", recipe.transform) for image in own[:DEMO_THUMBNAILS]]
            kept.keep((fingerprint(one), one) for one in seen)
    classifier.save(path)
