"""Declare the options of `fewmore serve`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

ADDRESSES = "Addresses"
ACCESS = "Access"
OPERATION = "Operation"

ServedModel = Annotated[
    Path | None,
    typer.Argument(
        metavar="MODEL", help="A model file, such as birds.fewmore.", show_default=False
    ),
]
ModelsFolder = Annotated[
    Path | None,
    typer.Option(
        "--models",
        metavar="DIR",
        help="Serve all model files of a folder, each at /api/models/NAME/ and /models/NAME/.",
        show_default=False,
    ),
]
Demo = Annotated[
    bool,
    typer.Option("--demo", help="Serve a model of letters and digits that comes with it."),
]
Host = Annotated[
    str,
    typer.Option(
        help="The address to listen at; others than this machine need a token.",
        rich_help_panel=ADDRESSES,
    ),
]
Port = Annotated[
    int,
    typer.Option(min=0, max=65535, help="0 takes any that is free.", rich_help_panel=ADDRESSES),
]
PublicURLs = Annotated[
    list[str] | None,
    typer.Option(
        "--public-url",
        metavar="URL",
        help="What people open where a proxy is before the service. Can be repeated.",
        show_default=False,
        rich_help_panel=ADDRESSES,
    ),
]
Proxies = Annotated[
    list[str] | None,
    typer.Option(
        "--trusted-proxy",
        metavar="ADDRESS",
        help="A proxy, or a network, that says in X-Forwarded-For whom a request is from.",
        show_default=False,
        rich_help_panel=ADDRESSES,
    ),
]
Certificate = Annotated[
    Path | None,
    typer.Option(
        "--tls-cert",
        metavar="FILE",
        help="Speak HTTPS with this certificate (PEM).",
        show_default=False,
        rich_help_panel=ADDRESSES,
    ),
]
CertificateKey = Annotated[
    Path | None,
    typer.Option(
        "--tls-key",
        metavar="FILE",
        help="The certificate's key, if it is in a file of its own.",
        show_default=False,
        rich_help_panel=ADDRESSES,
    ),
]
Token = Annotated[
    str | None,
    typer.Option(
        help="Needed for all requests; others on this machine can see it in the list of "
        "processes. Default: $FEWMORE_TOKEN, or a random one where others can connect.",
        show_default=False,
        rich_help_panel=ACCESS,
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Read the token from a file.",
        show_default=False,
        rich_help_panel=ACCESS,
    ),
]
PublicReading = Annotated[
    bool,
    typer.Option(
        "--public-reading",
        help="Let everybody read and predict; only changes need the token.",
        rich_help_panel=ACCESS,
    ),
]
ImageHosts = Annotated[
    list[str] | None,
    typer.Option(
        "--image-host",
        metavar="HOST",
        help="Fetch images by URL from this host. Can be repeated.",
        show_default=False,
        rich_help_panel=ACCESS,
    ),
]
Thumbnails = Annotated[
    bool,
    typer.Option(
        "--thumbnails/--no-thumbnails",
        help="Store small copies of taught images; without, those that are there are removed.",
    ),
]
ReadOnly = Annotated[
    bool,
    typer.Option(
        "--read-only",
        help="Predict and change nothing, on the disk or else.",
        rich_help_panel=ACCESS,
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Threads that embed images on a CPU. Default: one for each core.",
        show_default=False,
        rich_help_panel=OPERATION,
    ),
]
LimitTexts = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        metavar="NAME=NUMBER",
        help="Change a limit, such as images=128. Can be repeated.",
        show_default=False,
        rich_help_panel=OPERATION,
    ),
]
LogFormat = Annotated[
    Literal["text", "json"],
    typer.Option(
        help="How to write the log, on stderr.",
        rich_help_panel=OPERATION,
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.", rich_help_panel=OPERATION)]
