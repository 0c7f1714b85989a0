"""How large the residual streams of a model are, layer by layer, and what its layers add to them.

    with LayerWatch(model) as watch:
        model(...).loss.backward()
    report = watch.report()
    report.layers[3].y_norm, report.growth

Works on any model that has a list of layers: ours, the built-in decoder, or one of transformers,
whose one stream is reported as Y. Nothing is read from the device before `report`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from burnish.boundary import Count, public
from burnish.errors import ArgumentError
from burnish.models.blocks.residual import Layers, ResidualBlock
from burnish.models.blocks.topology import Streams, Topology, settled

Measured = TypeVar("Measured")


class LayerFigures(NamedTuple):
    """One layer; None for what it has not, or what was not measured."""

    x_norm: float | None
    """Mean length of a token's vector in the normalised stream, behind the layer."""
    y_norm: float | None
    """The same in the stream that is never normalised."""
    update_ratio_x: float | None
    """Mean size of what the layer adds to X, depth scale included, over the mean size of X before it."""
    update_ratio_y: float | None
    gradient_norm: float | None
    """Of all the layer's weights."""


class NormReport(NamedTuple):
    """All layers, and the vectors that enter the first."""

    layers: list[LayerFigures]
    embedding_norm: float
    """Mean length of a token's vector before the first layer."""

    @property
    def growth(self) -> float | None:
        """The last layer's Y, or X where there is no Y, over the embedding."""
        last = self.layers[-1]
        norm = last.x_norm if last.y_norm is None else last.y_norm
        return None if norm is None or not self.embedding_norm else norm / self.embedding_norm

    def metrics(self) -> dict[str, float]:
        """By name for the store: `layers/y_norm/3` is that of the fourth layer."""
        found = {"layers/embedding_norm": self.embedding_norm}
        for index, layer in enumerate(self.layers):
            for name, value in layer._asdict().items():
                if value is not None:
                    found[f"layers/{name}/{index}"] = value
        return found


class LayerWatch:
    """Measures every forward pass inside its `with`; the mean over their tokens is reported.

    Gradients are those that were noted, or else those that the weights hold when it is reported.

    >>> from burnish.models.siamesenorm import LayerWatch, new_model
    >>> model, ids = new_model(num_hidden_layers=4), torch.tensor([[1, 2, 3, 4]])
    >>> with LayerWatch(model) as watch:
    ...     model(ids, labels=ids).loss.backward()
    >>> report = watch.report()
    >>> len(report.layers), report.layers[3].y_norm > report.embedding_norm
    (4, True)
    """

    def __init__(self, model: nn.Module, *, only_training: bool = False) -> None:
        """`only_training`: passes without gradients, as those of a reference, do not count."""
        self.model, self.only_training = model, only_training
        self.names, self.layers = find_layers(model)
        self._sums: list[dict[str, Tensor]] = [{} for _ in self.layers]
        self._embedding: list[Tensor] = []
        self._gradients: dict[int, Tensor] = {}
        self._hooks: list[Any] = []
        self._updates: dict[int, dict[int, Tensor]] = {}
        """What the sublayers of a layer have computed, until the layer itself is done."""

    def __enter__(self) -> LayerWatch:
        for index, layer in enumerate(self.layers):
            topology = _topology(self.model, layer)
            if topology is not None and topology.has_x and not isinstance(layer, ResidualBlock):
                for place, part in enumerate((layer.self_attn, layer.mlp)):
                    assert isinstance(part, nn.Module)
                    keep = partial(self._keep, index, place)
                    self._hooks.append(part.register_forward_hook(keep))
            see = partial(self._see, index, topology)
            self._hooks.append(layer.register_forward_hook(see, with_kwargs=True))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    @property
    def _counts(self) -> bool:
        return torch.is_grad_enabled() or not self.only_training

    def _keep(self, index: int, place: int, module: nn.Module, args: Any, output: Any) -> None:
        if self._counts and isinstance(output, Tensor):
            self._updates.setdefault(index, {})[place] = output.detach()

    def _see(
        self,
        index: int,
        topology: Topology | None,
        module: nn.Module,
        args: Any,
        kwargs: Any,
        output: Any,
    ) -> None:
        if self._counts:
            updates = self._updates.pop(index, {})
            if isinstance(module, ResidualBlock):
                updates = dict(enumerate(output[2]))
            self._note(index, topology, streams_before(module, args, kwargs), output, updates)

    @torch.no_grad()
    def _note(
        self,
        index: int,
        topology: Topology | None,
        before: Streams,
        output: Any,
        updates: Mapping[int, Tensor],
    ) -> None:
        after = streams_after(output)
        added = _added(before, after, updates, index, topology)
        found: dict[str, Tensor] = {}
        pairs = (
            ("x", before.x, after.x, added.x),
            ("y", before.y, after.y, added.y),
        )
        for letter, old, new, update in pairs:
            if old is None or new is None:
                continue
            found[f"{letter}_norm"] = new.float().norm(dim=-1).mean()
            if update is not None:
                size = old.float().abs().mean().clamp_min(1e-30)
                found[f"update_ratio_{letter}"] = update.float().abs().mean() / size
        start = before.x if before.y is None else before.y
        assert start is not None
        tokens = start.numel() // start.shape[-1]
        if index == 0:
            self._embedding.append(torch.stack((start.float().norm(dim=-1).mean() * tokens,)))
            self._embedding.append(torch.full((1,), float(tokens), device=start.device))
        sums = self._sums[index]
        for name, value in {**found, "tokens": torch.ones_like(next(iter(found.values())))}.items():
            sums[name] = sums[name] + value * tokens if name in sums else value * tokens

    def note_gradients(self, named: Iterable[tuple[str, Tensor | None]] | None = None) -> None:
        """Take in gradients by the name of their weight; those of the model itself by default.

        Called several times, the squares add up over different weights and the last one counts for
        the same weight.
        """
        if named is None:
            named = ((name, weight.grad) for name, weight in self.model.named_parameters())
        squares: dict[int, list[Tensor]] = {}
        for name, gradient in named:
            place = self._layer_of(name)
            if place is not None and gradient is not None:
                squares.setdefault(place, []).append(gradient.detach().float().square().sum())
        self._gradients |= {place: torch.stack(all_).sum() for place, all_ in squares.items()}

    def _layer_of(self, name: str) -> int | None:
        prefix = self.names
        if not name.startswith(f"{prefix}."):
            return None
        number = name.removeprefix(f"{prefix}.").partition(".")[0]
        return int(number) if number.isdigit() else None

    @property
    def is_empty(self) -> bool:
        """Whether no pass was seen."""
        return not self._embedding

    def report(self) -> NormReport:
        """The figures; a model that was not run is refused."""
        if self.is_empty:
            raise ArgumentError("nothing was measured: run the model inside the `with`")
        if not self._gradients:
            self.note_gradients()
        total = torch.stack(self._embedding).view(-1, 2).sum(0)
        layers = []
        for index, sums in enumerate(self._sums):
            count = sums.get("tokens")
            read = {name: float(value / count) for name, value in sums.items() if count is not None}
            gradient = self._gradients.get(index)
            layers.append(
                LayerFigures(
                    read.get("x_norm"),
                    read.get("y_norm"),
                    read.get("update_ratio_x"),
                    read.get("update_ratio_y"),
                    None if gradient is None else float(gradient.sqrt()),
                )
            )
        return NormReport(layers, float(total[0] / total[1]))


def find_layers(model: nn.Module) -> tuple[str, list[nn.Module]]:
    """The name and the modules of a model's list of layers: the longest of its text decoder.

    Encoders of pictures and sounds have lists of their own, and so have experts inside a layer.
    """
    found: tuple[str, list[nn.Module]] = ("", [])
    prefix, decoder = _text_decoder(model)
    lists: list[str] = []
    for name, module in decoder.named_modules(prefix=prefix):
        is_inside = any(name.startswith(f"{outer}.") for outer in lists)
        if is_inside or not isinstance(module, nn.ModuleList | Layers):
            continue
        lists.append(name)
        if len(module) > len(found[1]):
            found = (name, list(module))
    if not found[1]:
        raise ArgumentError(f"{type(model).__name__} has no list of layers to look at")
    return found


def _text_decoder(model: nn.Module) -> tuple[str, nn.Module]:
    """The part of a model of transformers that reads text, with its name; the model where it has none."""
    get = next(
        (one for part in model.modules() if callable(one := getattr(part, "get_decoder", None))),
        lambda: model,
    )
    decoder = get()
    return next(
        ((name, part) for name, part in model.named_modules() if part is decoder), ("", model)
    )


def last_quarter(model: nn.Module) -> tuple[int, ...]:
    """The deepest quarter of a model's layers, at least one; none where they are compiled.

    A compiled layer runs whatever it is told, so it cannot be left out.
    """
    layers = find_layers(model)[1]
    if any(getattr(layer, "_compiled_call_impl", None) is not None for layer in layers):
        return ()
    return tuple(range(len(layers) - max(1, len(layers) // 4), len(layers)))


class DropEffect(NamedTuple):
    """What leaving out some layers does to a loss."""

    layers: tuple[int, ...]
    loss: float
    change: float


@public
def drop_sensitivity(
    model: nn.Module, loss: Callable[[], Any], groups: Sequence[Sequence[Count]] | None = None
) -> list[DropEffect]:
    """The loss without each group of layers, and how much larger it is than with all of them.

    `loss()` runs the model. By default every layer is left out alone, then the last quarter at once.

    >>> from burnish.models.siamesenorm import drop_sensitivity, new_model
    >>> model, ids = new_model(num_hidden_layers=4), torch.tensor([[1, 2, 3, 4]])
    >>> effects = drop_sensitivity(model, lambda: model(ids, labels=ids).loss)
    >>> [effect.layers for effect in effects]
    [(0,), (1,), (2,), (3,)]
    """
    chosen = layer_groups(model) if groups is None else [tuple(sorted(set(one))) for one in groups]
    if any(group and group[-1] >= len(find_layers(model)[1]) for group in chosen):
        raise ArgumentError(f"groups: got {groups}, expected places of the model's layers")
    with torch.no_grad():
        whole = float(loss())
        found = list(without_each(model, chosen, lambda: float(loss())))
    return [DropEffect(group, value, value - whole) for group, value in found]


def layer_groups(model: nn.Module) -> list[tuple[int, ...]]:
    """Every layer alone, then the last quarter at once where that is more than one layer."""
    alone: list[tuple[int, ...]] = [(index,) for index in range(len(find_layers(model)[1]))]
    deepest = last_quarter(model)
    return alone if len(deepest) < 2 else [*alone, deepest]


def without_each(
    model: nn.Module, groups: Iterable[tuple[int, ...]], measure: Callable[[], Measured]
) -> Iterator[tuple[tuple[int, ...], Measured]]:
    """Each group of layers, with what `measure()` finds without it."""
    for group in groups:
        with without_layers(model, group):
            found = measure()
        yield group, found


@contextmanager
def without_layers(model: nn.Module, dropped: Collection[int]) -> Iterator[None]:
    """Let the residual streams pass by some layers; depth scales stay those of their place."""
    layers = find_layers(model)[1]
    try:
        for index in dropped:
            layer = layers[index]

            def passed(*args: Any, layer: nn.Module = layer, **kwargs: Any) -> Any:
                before = streams_before(layer, args, kwargs)
                if isinstance(layer, ResidualBlock):
                    return before.x, before.y, []
                is_ours = bool(args) and isinstance(args[0], Streams)
                return args[0] if is_ours else before.y

            # On the instance: it goes before the class's own, and is deleted again below.
            layer.forward = passed
        yield
    finally:
        for index in dropped:
            del layers[index].forward


def _topology(model: nn.Module, layer: nn.Module) -> Topology | None:
    """That of a layer of ours; None for one of transformers, which has the one stream Y."""
    holder = layer if isinstance(layer, ResidualBlock) else getattr(model, "architecture", None)
    found = getattr(holder, "topology", None)
    return found if isinstance(found, Topology) else None


def streams_before(module: nn.Module, args: Any, kwargs: Any) -> Streams:
    """The streams that enter a layer, what is still to be added included."""
    if isinstance(module, ResidualBlock):
        return Streams(args[0], args[1])
    first = args[0] if args else kwargs.get("hidden_states")
    if isinstance(first, Streams):
        return settled(first)
    if not isinstance(first, Tensor):
        raise ArgumentError(f"{type(module).__name__} takes no hidden states as its first argument")
    return Streams(None, first)


def streams_after(output: Any) -> Streams:
    """The streams that leave a layer, what is still to be added included."""
    if isinstance(output, Streams):
        return settled(output)
    if isinstance(output, tuple) and len(output) == 3 and isinstance(output[2], list):
        return Streams(output[0], output[1])
    return Streams(None, output[0] if isinstance(output, tuple) else output)


def _added(
    before: Streams,
    after: Streams,
    updates: Mapping[int, Tensor],
    index: int,
    topology: Topology | None,
) -> Streams:
    """What a layer has added to each stream; None where that is not known.

    X is normalised on the way, so its change is not what was added: that is the share of each
    sublayer's update that the depth scale lets through.
    """
    x = y = None
    if topology is not None and after.x is not None and updates:
        shares = [topology.x_share(2 * index + place) for place in updates]
        parts = [share * one.float() for share, one in zip(shares, updates.values(), strict=True)]
        x = torch.stack(parts).sum(0)
    if before.y is not None and after.y is not None:
        y = after.y - before.y
    return Streams(x, y)
