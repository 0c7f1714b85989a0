"""How large the residual streams of a model are, layer by layer, and what its layers add to them.

Works on any model that has a list of layers: ours, the built-in decoder, or one of transformers,
whose one stream is reported as Y. Nothing is read from the device before `report`.

`measure_norm_gap` is GAP's diagnosis: in a Pre-Norm decoder the stream grows with depth, so a hidden
state that is fed back as the next input is far longer than anything the model was trained to read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec
import torch
from msgspec import Struct
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
        return {"layers/embedding_norm": self.embedding_norm} | {
            f"layers/{name}/{index}": value
            for index, layer in enumerate(self.layers)
            for name, value in layer._asdict().items()
            if value is not None
        }


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
        self.prefix, self.layers = find_layers(model)
        self._sums: list[dict[str, Tensor]] = [{} for _ in self.layers]
        self._embedding: list[Tensor] = []
        self._gradients: dict[int, Tensor] = {}
        self._hooks: list[Any] = []
        self._updates: dict[int, dict[int, Tensor]] = {}
        """What the sublayers of a layer have computed, until the layer itself is done."""

    def __enter__(self) -> LayerWatch:
        for index, layer in enumerate(self.layers):
            holder = layer if isinstance(layer, ResidualBlock) else self.model
            holder = getattr(holder, "architecture", holder)
            topology = getattr(holder, "topology", None)
            topology = topology if isinstance(topology, Topology) else None
            if topology is not None and topology.has_x and not isinstance(layer, ResidualBlock):
                for place, part in enumerate((layer.self_attn, layer.mlp)):
                    assert isinstance(part, nn.Module)
                    keep = partial(self._keep, index, place)
                    self._hooks.append(part.register_forward_hook(keep))
            see = partial(self._see, index, topology)
            self._hooks.append(layer.register_forward_hook(see, with_kwargs=True))
        return self

    def __exit__(self, *_: object) -> None:
        while self._hooks:
            self._hooks.pop().remove()

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
        if not self._counts:
            return
        updates = self._updates.pop(index, {})
        if isinstance(module, ResidualBlock):
            updates = dict(enumerate(output[2]))
        before, after = streams_before(module, args, kwargs), streams_after(output)
        with torch.no_grad():
            added_x = None
            if topology is not None and after.x is not None and updates:
                # X is normalised on the way: what was added is what the depth scale lets through.
                shares = [topology.x_share(2 * index + place) for place in updates]
                pairs = zip(shares, updates.values(), strict=True)
                added_x = torch.stack([share * one.float() for share, one in pairs]).sum(0)
            found: dict[str, Tensor] = {}
            for name, old, new in (("x", before.x, after.x), ("y", before.y, after.y)):
                if old is None or new is None:
                    continue
                found[f"{name}_norm"] = new.float().norm(dim=-1).mean()
                update = added_x if name == "x" else new - old
                if update is not None:
                    size = old.float().abs().mean().clamp_min(1e-30)
                    found[f"update_ratio_{name}"] = update.float().abs().mean() / size
            start = main_stream(before)
            tokens = start.numel() // start.shape[-1]
            if index == 0:
                mean = start.float().norm(dim=-1).mean() * tokens
                self._embedding += [mean, torch.full_like(mean, float(tokens))]
            found["tokens"] = torch.ones_like(next(iter(found.values())))
            sums = self._sums[index]
            for name, value in found.items():
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
            number = name.removeprefix(f"{self.prefix}.").partition(".")[0]
            is_of_layer = name.startswith(f"{self.prefix}.") and number.isdigit()
            if is_of_layer and gradient is not None:
                square = gradient.detach().float().square().sum()
                squares.setdefault(int(number), []).append(square)
        self._gradients |= {place: torch.stack(all_).sum() for place, all_ in squares.items()}

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
            read = {name: float(value / sums["tokens"]) for name, value in sums.items()}
            if index in self._gradients:
                read["gradient_norm"] = float(self._gradients[index].sqrt())
            layers.append(LayerFigures(*(read.get(name) for name in LayerFigures._fields)))
        return NormReport(layers, float(total[0] / total[1]))


def find_layers(model: nn.Module) -> tuple[str, list[nn.Module]]:
    """The name and the modules of a model's list of layers: the longest of its text decoder.

    Encoders of pictures and sounds have lists of their own, and so have experts inside a layer.
    """
    getters = (getattr(part, "get_decoder", None) for part in model.modules())
    decoder = next((one() for one in getters if callable(one)), model)
    named = ((name, part) for name, part in model.named_modules() if part is decoder)
    prefix, decoder = next(named, ("", model))
    found: tuple[str, list[nn.Module]] = ("", [])
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
    model: nn.Module, loss: Callable[[], Any], groups: Sequence[Collection[Count]] | None = None
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

    def passed(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
        before = streams_before(layer, args, kwargs)
        if isinstance(layer, ResidualBlock):
            return before.x, before.y, []
        return args[0] if args and isinstance(args[0], Streams) else before.y

    try:
        for index in dropped:
            # On the instance: it goes before the class's own, and is deleted again below.
            layers[index].forward = partial(passed, layers[index])
        yield
    finally:
        for index in dropped:
            del layers[index].forward


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


def main_stream(streams: Streams) -> Tensor:
    """Y, or X where there is no Y."""
    found = streams.x if streams.y is None else streams.y
    assert found is not None
    return found


WIDE = 3.0
"""Times the embeddings' length from which on hidden states are called out of range."""


class Lengths(Struct, frozen=True):
    """Lengths of the vectors of a text's tokens at one place of a model."""

    mean: float
    first: float
    """Of the first token, which many models make far longer than all others."""
    rest: float | None
    """Mean without the first token; None for a text of one."""
    largest: float


class NormGap(Struct, frozen=True):
    """A model on one text."""

    embedding: Lengths
    """What enters the first layer."""
    layers: list[Lengths]
    """Behind each layer."""
    normed: Lengths | None
    """Behind the final norm; None where the pass gave something else."""
    vocabulary: float | None
    """Mean length of all rows of the embedding table; None where none was given."""
    tokens: int

    @property
    def ratio(self) -> float:
        """The last layer's mean length over that of the embeddings: what GAP reports."""
        return self.layers[-1].mean / self.embedding.mean

    @property
    def rest_ratio(self) -> float | None:
        """The same without the first token."""
        last, first = self.layers[-1].rest, self.embedding.rest
        return None if last is None or not first else last / first

    @property
    def normed_ratio(self) -> float | None:
        """Behind the final norm."""
        return None if self.normed is None else self.normed.mean / self.embedding.mean

    @property
    def is_wide(self) -> bool:
        """Whether hidden states are out of the range of what the model reads; the first token apart."""
        ratio = self.ratio if self.rest_ratio is None else self.rest_ratio
        return not 1 / WIDE <= ratio <= WIDE

    def line(self) -> str:
        """What it means."""
        ratio = self.ratio if self.rest_ratio is None else self.rest_ratio
        outside = "they lie outside of it; latents need a head (pca, linear) or ema_norm"
        meaning = (
            f"fed back as they are {outside}"
            if self.is_wide
            else "they can be fed back as they are"
        )
        return f"hidden states are {ratio:.3g} times as long as what the model reads: {meaning}"

    def to_json(self) -> dict[str, Any]:
        """Plain numbers."""
        ratios = {name: getattr(self, name) for name in ("ratio", "rest_ratio", "normed_ratio")}
        return {**msgspec.to_builtins(self), **ratios, "meaning": self.line()}


@torch.no_grad()
def measure_norm_gap(
    model: nn.Module, run: Callable[[], Any], table_VD: Tensor | None = None
) -> NormGap:
    """Measure one forward pass, `run()`, over one row of tokens; `table_VD` is the embedding table.

    >>> from burnish.models.siamesenorm import new_model
    >>> model, ids = new_model(num_hidden_layers=4), torch.tensor([[1, 2, 3, 4]])
    >>> gap = measure_norm_gap(model, lambda: model.model(ids).last_hidden_state)
    >>> len(gap.layers), gap.tokens, gap.ratio > 1
    (4, 4, True)
    """
    lengths: list[Tensor] = []
    """Before the first layer, then behind each."""

    def lengths_of(vectors: Tensor) -> Tensor:
        found: Tensor = vectors.double().norm(dim=-1)
        return found.flatten()

    def see(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if not lengths:
            lengths.append(lengths_of(main_stream(streams_before(module, args, kwargs))))
        lengths.append(lengths_of(main_stream(streams_after(output))))

    hooks = [one.register_forward_hook(see, with_kwargs=True) for one in find_layers(model)[1]]
    try:
        found = run()
    finally:
        for hook in hooks:
            hook.remove()
    if not lengths or not len(lengths[0]):
        raise ArgumentError("run: no layer saw a token; expected a forward pass over a text")
    place = next((i for i, one in enumerate(lengths[1:], 1) if not one.isfinite().all()), 0)
    if place or not lengths[0].isfinite().all() or not lengths[0].mean() > 0:
        where = f"layer {place}" if place else "the embeddings"
        raise ArgumentError(f"{where}: vectors that are no numbers or all 0")

    def told(lengths_N: Tensor) -> Lengths:
        rest = float(lengths_N[1:].mean()) if len(lengths_N) > 1 else None
        return Lengths(float(lengths_N.mean()), float(lengths_N[0]), rest, float(lengths_N.max()))

    start, *layers = (told(one) for one in lengths)
    normed = told(lengths_of(found)) if isinstance(found, Tensor) else None
    vocabulary = None if table_VD is None else float(table_VD.float().norm(dim=-1).mean())
    return NormGap(start, layers, normed, vocabulary, len(lengths[0]))
