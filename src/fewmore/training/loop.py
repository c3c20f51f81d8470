"""Run the one training loop: rounds of steps, learning rates, checkpoints, resuming.

A stage is rounds (epochs, or numbers of episodes), a round is steps, and a step's input is one row
of indices that was sampled for the whole round. All randomness of a round comes from (seed, stage,
round), so a run that resumes at a round repeats it exactly. The host never waits for a step, only
for a round: on a GPU, steps may be queued far ahead.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Generator, Tensor, nn

from fewmore.errors import CheckpointError, ConfigError
from fewmore.random import derive_seed
from fewmore.training.checkpoint import State
from fewmore.training.fast_path import Engine, Step, accelerate, yield_gpu
from fewmore.training.optimizer import (
    EpochsConfig,
    ParameterGroup,
    SGDConfig,
    build_sgd,
    momentum_buffers,
    set_learning_rates,
)
from fewmore.training.runtime import Round, Runtime

Loss = Callable[[Tensor, Generator], Tensor]  # of a step's input


def train(
    stage: str,
    modules: dict[str, nn.Module],
    groups: Sequence[ParameterGroup],
    loss_of: Loss | Mapping[int, Loss],
    sample: Callable[[Generator], Tensor],
    rounds: int,
    config: SGDConfig,
    runtime: Runtime,
    seed: int,
) -> None:
    """Train modules: `sample` gives a round's inputs, a row for each step; `loss_of` its loss.

    Where the loss changes on the way, `loss_of` maps the round from which each one counts to that
    loss. `modules` is all that may change, and what a checkpoint holds; `groups` is what the
    optimizer changes.
    """
    generator = torch.Generator(runtime.device)
    losses = loss_of if isinstance(loss_of, Mapping) else {0: loss_of}
    total_loss = torch.zeros((), device=runtime.device)
    step: Step | None = None
    with accelerate(modules, runtime) as engine:
        # Gradient scaling works with torch.optim's own classes only.
        scaled = runtime.used_precision == "fp16"
        optimizer_class = torch.optim.SGD if scaled else engine.optimizer_class
        optimizer = build_sgd(groups, config, runtime.device, optimizer_class)
        done = _resume(stage, modules, optimizer, runtime, seed, rounds)
        for round_ in range(done, rounds):
            began = time.monotonic()
            set_learning_rates(optimizer, groups, config, round_)
            generator.manual_seed(derive_seed(seed, stage, round_, "draw"))
            inputs = sample(generator)
            if step is None or round_ in losses:
                loss = losses[max(first for first in losses if first <= round_)]
                eager = _eager_step(loss, optimizer, generator, total_loss, runtime, engine)
                state = [
                    *_tensors(modules).values(),
                    *momentum_buffers(optimizer),
                    total_loss,
                ]
                step = engine.capture(eager, inputs[0], state, generator)
            generator.manual_seed(derive_seed(seed, stage, round_, "steps"))
            mean_loss = _run_steps(step, inputs, total_loss, runtime)
            if not math.isfinite(mean_loss):
                raise ConfigError(
                    f"{stage}: the loss became {mean_loss} in round {round_ + 1}; "
                    f"lower the learning rate (now {config.lr:g})"
                )
            lr = config.lr * config.lr_factor(round_)
            seconds = time.monotonic() - began
            # Reported before it is saved: after a kill in between, a round is reported twice, never
            # not at all.
            runtime.on_round(Round(stage, round_ + 1, rounds, mean_loss, lr, seconds))
            last = round_ + 1 == rounds
            if runtime.checkpoint is not None and (last or runtime.checkpoint.due()):
                unfinished = None if last else optimizer
                runtime.checkpoint.save(
                    stage, _state(modules, unfinished, seed, round_ + 1, rounds)
                )


def train_epochs(
    stage: str,
    modules: dict[str, nn.Module],
    parameters: Sequence[nn.Parameter],
    loss_of: Loss,
    images: int,
    config: EpochsConfig,
    runtime: Runtime,
    seed: int,
) -> None:
    """Train on shuffled batches of images; `loss_of` takes a batch's positions in the set."""
    train(
        stage,
        modules,
        [ParameterGroup(parameters)],
        loss_of,
        lambda generator: shuffled_batches(images, config.batch, generator),
        config.epochs,
        config,
        runtime,
        seed,
    )


def shuffled_batches(images: int, batch: int, generator: Generator) -> Tensor:
    """Sample the positions of an epoch, (steps, batch); an incomplete last batch is left out."""
    batch = min(batch, images)
    order = torch.randperm(images, device=generator.device, generator=generator)
    return order[: images // batch * batch].view(-1, batch)


def _eager_step(
    loss_of: Loss,
    optimizer: torch.optim.SGD,
    generator: Generator,
    total_loss: Tensor,
    runtime: Runtime,
    engine: Engine,
) -> Step:
    """Build a step of training as plain PyTorch; `total_loss` sums up the losses."""
    scaler = torch.amp.GradScaler("cuda", enabled=runtime.used_precision == "fp16")

    def step(row: Tensor) -> None:
        optimizer.zero_grad()
        with runtime.autocast(), engine.forward():
            loss = loss_of(row, generator)
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        engine.finish_backward()
        scaler.step(optimizer)
        scaler.update()
        total_loss.add_(loss.detach())

    return step


def _run_steps(step: Step, inputs: Tensor, total_loss: Tensor, runtime: Runtime) -> float:
    """Take the steps of a round and return their mean loss; the one place where the host waits."""
    with yield_gpu():
        with _sync_forbidden(runtime):
            for row in inputs:
                step(row)
        mean_loss = float(total_loss) / len(inputs)
    total_loss.zero_()
    return mean_loss


def _tensors(modules: dict[str, nn.Module]) -> dict[str, Tensor]:
    """Return all parameters and buffers by name."""
    return {
        f"{name}.{key}": tensor
        for name, module in modules.items()
        for key, tensor in module.state_dict().items()
    }


def _shapes(tensors: dict[str, Tensor]) -> dict[str, torch.Size]:
    """Return the shapes of tensors by name."""
    return {name: tensor.shape for name, tensor in tensors.items()}


def _state(
    modules: dict[str, nn.Module],
    optimizer: torch.optim.SGD | None,
    seed: int,
    done: int,
    rounds: int,
) -> State:
    """Copy all that a stage needs to go on; momentum buffers only while it is under way."""
    buffers = [] if optimizer is None else momentum_buffers(optimizer)
    return {
        "seed": seed,
        "done": done,
        "rounds": rounds,
        "tensors": {name: t.detach().cpu().clone() for name, t in _tensors(modules).items()},
        "momenta": {str(i): buffer.detach().cpu().clone() for i, buffer in enumerate(buffers)},
    }


def _resume(
    stage: str,
    modules: dict[str, nn.Module],
    optimizer: torch.optim.SGD,
    runtime: Runtime,
    seed: int,
    rounds: int,
) -> int:
    """Restore the stage from the checkpoint, and return the rounds already done."""
    state = None if runtime.checkpoint is None else runtime.checkpoint.load(stage)
    if state is None:
        return 0
    tensors = _tensors(modules)
    saved = (state["seed"], state["rounds"], _shapes(state["tensors"]))
    if saved != (seed, rounds, _shapes(tensors)):
        raise CheckpointError(
            f"the checkpoint of stage '{stage}' comes from another run (seed, rounds or network "
            "differ): start without --resume"
        )
    with torch.no_grad():
        for name, tensor in tensors.items():
            tensor.copy_(state["tensors"][name])
        if state["momenta"]:
            for i, buffer in enumerate(momentum_buffers(optimizer)):
                buffer.copy_(state["momenta"][str(i)])
    return int(state["done"])


@contextmanager
def _sync_forbidden(runtime: Runtime) -> Iterator[None]:
    """Raise where the host waits for the GPU, if the runtime asks for it."""
    if not (runtime.cuda and runtime.forbid_sync):
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
