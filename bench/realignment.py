"""Realignment on a reused start: does it keep the quality at a later K? (after Chorus, arXiv 2604.04451)

    python -m bench.realignment --count 96 --steps 5 --ks 1 2 3 --settings off old=1.5 added=1,first=1 logits=4
    python -m bench.realignment --figures-only …          (score and print the images that exist)

The second prompt of each scene pair of `afterimage profile` starts from the first prompt's latent at K, once per
setting. The reference is the second prompt from noise with the same seed at T = 50. Images and states are stored under
--work, so a killed run continues and further settings or pairs reuse what exists.

A setting is `off` or a list of these words, joined by commas; n, o and u are the model's outputs for the new prompt,
the source's prompt and the empty prompt, g the guidance:

    old=S        n + S·(n − o): the old prompt takes the place of the unconditional row; as many rows as without
    mixed=M      the unconditional row's encoding is M parts the old prompt's and 1 − M parts the empty prompt's
    added=W      u + g·(n − u) + W·(n − o): a third row
    further=W    the new prompt's encoding is moved by W times its difference from the old one's, token by token
    logits=F     cross-attention of the new prompt: F times the weight for the tokens of changed words
    values=F     cross-attention of the new prompt: F times the values of these tokens
    guidance=F   F times the guidance, for comparison: it knows nothing of the old prompt
    first=N      all of it in the first N steps only

Rule, written before the final run (`pays`), which uses pairs that no choice of settings has seen. A setting pays if at
one T all of this holds:

- The K table of the edits (α = .95) has a later level than `off`, or one of its levels at a similarity lower by .05.
- At this level the look keeps its bounds of .9, and all attributes right is not shown to be rarer than with `off`.
- Paraphrases keep .95 of their CLIP score at this level.
- A start at this level runs fewer rows than the latest start that is safe without the setting.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import SequenceMatcher
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from bench.frontier import bootstrapped, interval
from bench.measuring.judging import BATCH, JUDGE, open_encoder
from bench.measuring.quiet import quiet
from bench.measuring.recording import command_line, machine, record, settings_of, table
from services.cli.profiles.pairs import ScenePair, asked_for, right, scene_pairs
from services.embedder.encoder import Encoder
from services.gpu_worker.engine.engine import Engine
from services.gpu_worker.engine.events import Advanced, Finished, LatentCaptured, Left
from services.gpu_worker.engine.rows import FromState, Pixels, Row, Stepped, Task
from services.gpu_worker.families.pipeline import load_pipeline
from services.gpu_worker.families.unet import UNetFamily
from services.gpu_worker.jobs.codecs import decode_state, encode_png, encode_state
from services.retriever.profile import UNRELATED, ProfileRow, build_table, quality_of
from shared.domain.types import vector_from
from shared.models.card_lookup import find_card
from shared.models.confidence import ratio_bounds
from shared.models.quality import BOUNDS, Measures, likeness, look
from shared.runtime.progress import Remaining

ALPHA = 0.95
REFERENCE_STEPS = 50
T = TypeVar("T")
AT_ONCE = 32
"""Pairs that share batches."""
ROWS = 16
"""Images that share a step."""
LOOK = ("contrast", "saturation", "sharpness")


@dataclass(frozen=True, slots=True)
class Realignment:
    """One setting; the fields are described above."""

    old: float = 0.0
    mixed: float = 0.0
    added: float = 0.0
    further: float = 0.0
    logits: float = 1.0
    values: float = 1.0
    guidance: float = 1.0
    first: int = 0

    @classmethod
    def read(cls, text: str) -> Realignment:
        """Read a setting; ValueError for an unknown word."""
        if text == "off":
            return cls()
        words = dict(word.split("=") for word in text.split(","))
        if unknown := set(words) - {field.name for field in fields(cls)}:
            raise ValueError(f"settings must be words of --help (got {', '.join(sorted(unknown))} in {text!r})")
        return cls(**{name: int(value) if name == "first" else float(value) for name, value in words.items()})

    def active(self, step: int) -> Realignment:
        """Return the setting of the step-th step since the start, counted from 0."""
        return OFF if self.first and step >= self.first else self

    def rows(self, steps: int) -> int:
        """Return the denoiser's rows of `steps` steps; two a step without realignment."""
        extra = min(self.first or steps, steps) if self.added else 0
        return 2 * steps + extra


OFF = Realignment()


@dataclass(frozen=True, slots=True)
class Prompts:
    """The encodings that a reused row may need, and how their tokens correspond."""

    new: Tensor
    """(tokens, width)."""
    old: Tensor
    empty: Tensor
    changed: tuple[int, ...]
    """Places of the new prompt's tokens that the old prompt does not have."""
    partners: tuple[int, ...]
    """Place in the old prompt for each token of the new one; −1: none."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One row of a forward pass and its weight in the sum."""

    weight: float
    hidden: Tensor
    changed: tuple[int, ...] = ()
    logits: float = 1.0
    values: float = 1.0


def passes(own: Realignment, prompts: Prompts, guidance: float) -> list[Pass]:
    """Return the rows whose weighted sum is the guided output."""
    partners = torch.tensor(prompts.partners)
    apart = torch.where((partners < 0)[:, None], torch.zeros(()), prompts.new - prompts.old[partners])
    new = prompts.new + own.further * apart if own.further else prompts.new

    def of_new(weight: float) -> Pass:
        return Pass(weight, new, prompts.changed, own.logits, own.values)

    if own.old:
        return [of_new(1 + own.old), Pass(-own.old, prompts.old)]
    scale = guidance * own.guidance
    negative = torch.lerp(prompts.empty, prompts.old, own.mixed) if own.mixed else prompts.empty
    rows = [of_new(scale + own.added), Pass(1 - scale, negative)]
    return [*rows, Pass(-own.added, prompts.old)] if own.added else rows


def aligned(new: Sequence[int], old: Sequence[int], length: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return `changed` and `partners` of two prompts' own tokens, which follow the start token."""
    changed: list[int] = []
    partners = [-1] * length
    partners[0] = 0
    for tag, i, i_end, j, j_end in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        for place in range(j_end - j):
            if tag != "equal":
                changed.append(1 + j + place)
            if place < i_end - i:
                partners[1 + j + place] = 1 + i + place
    for place in range(1 + len(new), length):
        partners[place] = min(place - len(new) + len(old), length - 1)
    return tuple(changed), tuple(partners)


class Amplified:
    """Cross-attention processor of diffusers with gains per row and token, (B, tokens)."""

    def __init__(self) -> None:
        self.logits: Tensor | None = None
        self.values: Tensor | None = None

    def __call__(self, attn: Any, hidden_states: Tensor, encoder_hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
        assert self.logits is not None
        assert self.values is not None
        heads = [
            part.unflatten(-1, (attn.heads, -1)).transpose(1, 2)
            for part in (
                attn.to_q(hidden_states),
                attn.to_k(encoder_hidden_states),
                attn.to_v(encoder_hidden_states) * self.values[..., None],
            )
        ]
        mixed = scaled_dot_product_attention(*heads, attn_mask=self.logits.log()[:, None, None])
        return attn.to_out[1](attn.to_out[0](mixed.transpose(1, 2).flatten(2)))  # type: ignore[no-any-return]


class RealignedFamily(UNetFamily):
    """A UNet family that realigns the rows of the tasks in `realigned`: task id → (setting, the source's prompt)."""

    def __init__(self, card: Any) -> None:
        super().__init__(card, load_pipeline(card, "StableDiffusionPipeline"), device=torch.device("cpu"))
        self.realigned: dict[str, tuple[Realignment, str]] = {}
        self.rows_run = 0
        self._amplified = Amplified()
        processors = self.denoiser.attn_processors
        self.denoiser.set_attn_processor(
            {name: self._amplified if ".attn2." in name else one for name, one in processors.items()}
        )

    def step(self, rows: Sequence[Row]) -> list[Stepped]:
        per_row = [self._passes(row) for row in rows]
        owners = [index for index, own in enumerate(per_row) for _ in own]
        flat = [one for own in per_row for one in own]
        latents = torch.stack([row.latent for row in rows])
        tokens = flat[0].hidden.shape[0]
        self._amplified.logits, self._amplified.values = torch.ones(2, len(flat), tokens)
        for number, one in enumerate(flat):
            self._amplified.logits[number, list(one.changed)] = one.logits
            self._amplified.values[number, list(one.changed)] = one.values
        timesteps = torch.stack([rows[index].position.timestep for index in owners])
        hidden = torch.stack([one.hidden for one in flat])
        output = self.denoiser(latents[owners], timesteps, encoder_hidden_states=hidden, return_dict=False)[0]
        weights = torch.tensor([one.weight for one in flat]).view(-1, 1, 1, 1)
        guided = torch.zeros_like(latents).index_add_(0, torch.tensor(owners), weights * output)
        self.rows_run += len(flat)
        moved, clean = self.sampler.step(latents, guided, [row.position for row in rows], None)
        return list(map(Stepped, moved.unbind(), clean.unbind()))

    def _passes(self, row: Row) -> list[Pass]:
        setting, source = self.realigned.get(row.task.id, (OFF, row.task.prompt))
        return passes(setting.active(row.done - row.started), self._prompts(row.task.prompt, source), row.task.guidance)

    def _prompts(self, new: str, old: str) -> Prompts:
        encoded = [self.encode_prompt(text).hidden for text in (new, old, "")]
        ids = [self.pipeline.tokenizer(text, add_special_tokens=False).input_ids for text in (new, old)]
        return Prompts(*encoded, *aligned(*ids, length=len(encoded[0])))


@dataclass(frozen=True, slots=True)
class Plan:
    """One part of the measurement: T, the start steps and the settings."""

    steps: int
    ks: Sequence[int]
    settings: Sequence[str]

    def images(self) -> list[tuple[int, str]]:
        return [(k, setting) for setting in self.settings for k in self.ks]

    def name(self, k: int, setting: str) -> str:
        return f"{self.steps}-{k}-{setting}"


class Store:
    """Images and states of pairs in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, pair: ScenePair, name: str) -> Path:
        return self._folder / f"{pair.number:04d}" / f"{name}"

    def has(self, pair: ScenePair, name: str) -> bool:
        return self.path(pair, name).exists()

    def write(self, pair: ScenePair, name: str, data: bytes) -> None:
        path = self.path(pair, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.part")
        part.write_bytes(data)
        part.rename(path)

    def image(self, pair: ScenePair, name: str) -> Pixels:
        return np.asarray(Image.open(io.BytesIO(self.path(pair, f"{name}.png").read_bytes())).convert("RGB"))


def generate(family: RealignedFamily, pairs: Sequence[ScenePair], plan: Plan, store: Store) -> None:
    """Generate what these pairs lack: source, reference and every image of the plan."""
    engine = Engine({family.card.name: family}, max_rows=ROWS, tell_every_s=0.0)
    by_number = {str(pair.number): pair for pair in pairs}

    def start(pair: ScenePair, k: int) -> None:
        state = decode_state(store.path(pair, f"{plan.steps}-{k}.state").read_bytes(), "fp16")
        for setting in plan.settings:
            if not store.has(pair, f"{(name := plan.name(k, setting))}.png"):
                family.realigned[f"{pair.number}/{name}"] = Realignment.read(setting), pair.before_text
                engine.submit(_task(family, pair, name, plan.steps, start=FromState(state, k)))

    for pair in pairs:
        if not store.has(pair, "noise.png"):
            engine.submit(_task(family, pair, "noise", REFERENCE_STEPS))
        if store.has(pair, f"before-{plan.steps}.png") and all(
            store.has(pair, f"{plan.steps}-{k}.state") for k in plan.ks
        ):
            for k in plan.ks:
                start(pair, k)
        else:
            engine.submit(_task(family, pair, f"before-{plan.steps}", plan.steps, capture_steps=tuple(plan.ks)))
    while not engine.idle:
        for event in engine.step():
            match event:
                case LatentCaptured(id=name, step=k, latent=latent):
                    pair = by_number[name.split("/")[0]]
                    store.write(pair, f"{plan.steps}-{k}.state", encode_state(latent, "fp16", ()))
                    start(pair, k)
                case Finished(id=name, pixels=pixels):
                    number, _, image = name.partition("/")
                    store.write(by_number[number], f"{image}.png", encode_png(pixels))
                case Left(error=error):
                    raise error
                case Advanced():
                    pass


def _task(family: RealignedFamily, pair: ScenePair, name: str, steps: int, **more: Any) -> Task:
    before, card = name.startswith("before"), family.card
    return Task(
        f"{pair.number}/{name}", card.name, pair.before_text if before else pair.after_text, card.default_size, steps,
        card.default_guidance, seed=pair.before_seed if before else pair.after_seed, **more,
    )  # fmt: skip


Scores = dict[tuple[int, str], dict[str, Any]]
"""(pair, image) → clip, right, contrast, saturation, sharpness and likeness to the source."""


def score(pairs: Sequence[ScenePair], plan: Plan, store: Store, encoder: Encoder, cache: Path) -> Scores:
    """Return the scores of every image of the plan and of the references; earlier ones come from `cache`."""
    from services.trainer.judging.classifier import load_judge

    judge, scores = load_judge(JUDGE), dict(_read(cache))
    names = [f"noise-{plan.steps}", *(plan.name(k, setting) for k, setting in plan.images())]
    missing = [(pair, name) for pair in pairs for name in names if (pair.number, name) not in scores]
    progress = Remaining("scoring", len(missing))
    texts: dict[str, Any] = {}
    with cache.open("a", encoding="utf-8") as file:
        for some in batched(missing, BATCH):
            pixels = [store.image(pair, "noise" if name.startswith("noise") else name) for pair, name in some]
            read = judge(np.stack(pixels))
            vectors = [vector_from(one.vector) for one in encoder.images([encode_png(one) for one in pixels])]
            for place, (pair, name) in enumerate(some):
                if pair.after_text not in texts:
                    texts[pair.after_text] = vector_from(encoder.texts([pair.after_text])[0].vector)
                seen = look(pixels[place])
                found = {
                    "clip": max(float(vectors[place] @ texts[pair.after_text]), 0.0),
                    "right": right(pair.after, {attribute: values[place] for attribute, values in read.items()}),
                    **{measure: getattr(seen, measure) for measure in LOOK},
                    "likeness": likeness(pixels[place], store.image(pair, f"before-{plan.steps}")),
                }
                scores[pair.number, name] = found
                file.write(json.dumps({"pair": pair.number, "image": name, **found}) + "\n")
            progress.advance(len(some))
    return scores


def _read(cache: Path) -> Iterator[tuple[tuple[int, str], dict[str, Any]]]:
    if cache.exists():
        for line in cache.read_text(encoding="utf-8").splitlines():
            one = json.loads(line)
            yield (one.pop("pair"), one.pop("image")), one


def profile_rows(
    pairs: Sequence[ScenePair], plan: Plan, setting: str, scores: Scores, similarity: Mapping[int, float]
) -> list[ProfileRow]:
    """Return the rows of Algorithm 2 for one setting."""
    rows = []
    for pair in pairs:
        noise, asked = scores[pair.number, f"noise-{plan.steps}"], asked_for(pair)
        for k in plan.ks:
            own = scores[pair.number, plan.name(k, setting)]
            rows.append(
                ProfileRow(
                    k, similarity[pair.number], own["clip"], noise["clip"],
                    all(own["right"][name] for name in asked) if asked else None,
                    all(noise["right"][name] for name in asked) if asked else None,
                    pair.kind, _measures(own), _measures(noise),
                )
            )  # fmt: skip
    return rows


def _measures(one: Mapping[str, Any]) -> Measures:
    return Measures(**{name: one[name] for name in (*LOOK, "likeness")})


def figures_of(pairs: Sequence[ScenePair], plan: Plan, scores: Scores) -> list[dict[str, Any]]:
    """Return one row per setting and K: the edits alone (neither paraphrases nor unrelated pairs), and paraphrases."""
    edits = [pair for pair in pairs if asked_for(pair) and pair.kind != UNRELATED]
    same = [pair for pair in pairs if not asked_for(pair)]

    def shares(name: str, what: str) -> Any:
        return np.array([float(_shown(pair, scores[pair.number, name]["right"], what)) for pair in edits])

    def clips(some: Sequence[ScenePair], name: str) -> list[float]:
        return [scores[pair.number, name]["clip"] for pair in some]

    rows, noise = [], f"noise-{plan.steps}"
    for k, setting in sorted(plan.images()):
        own, off = plan.name(k, setting), plan.name(k, "off")
        measured = quality_of(profile_rows(edits, Plan(plan.steps, [k], [setting]), setting, scores, _zeros(edits)))
        rows.append(
            {
                "steps": plan.steps, "k": k, "setting": setting, "pairs": len(edits),
                "rows": Realignment.read(setting).rows(plan.steps - k),
                "clip_ratio": (
                    sum(clips(edits, own)) / sum(clips(edits, noise)),
                    *ratio_bounds(clips(edits, own), clips(edits, noise)),
                ),
                **{what: bootstrapped(shares(own, what)) for what in ("changed", "kept", "all")},
                **{
                    f"{what}_more": bootstrapped(shares(own, what) - shares(off, what))
                    for what in ("changed", "kept", "all")
                },
                **{f"{what}_from_noise": float(shares(noise, what).mean()) for what in ("changed", "kept", "all")},
                **{
                    name: (measure.value, measure.bound)
                    for name in (*LOOK, "copying")
                    if (measure := getattr(measured, name))
                },
                "paraphrases_clip_ratio": _ratio(clips(same, own), clips(same, noise)),
            }
        )  # fmt: skip
    return rows


def _zeros(pairs: Sequence[ScenePair]) -> dict[int, float]:
    return {pair.number: 0.0 for pair in pairs}


def _ratio(values: Sequence[float], references: Sequence[float]) -> tuple[float, float] | None:
    if not values:
        return None
    return sum(values) / sum(references), ratio_bounds(values, references)[0]


def _shown(pair: ScenePair, judged: Mapping[str, bool], what: str) -> bool:
    """Return whether the changed attributes, the others or all of them are right."""
    asked = asked_for(pair)
    return all(value for name, value in judged.items() if what == "all" or (name in asked) == (what == "changed"))


def tables_of(
    pairs: Sequence[ScenePair], plan: Plan, scores: Scores, similarity: Mapping[int, float]
) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """Return setting → `edits` (all but unrelated pairs) and `all` → levels (K, similarity) of the K table."""
    found: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for setting in plan.settings:
        rows = profile_rows(pairs, plan, setting, scores, similarity)
        edits = [row for row in rows if row.kind != UNRELATED]
        found[setting] = {
            name: [
                (level.k, round(level.min_similarity, 4))
                for level in build_table(some, alpha=ALPHA, steps=plan.steps).levels
            ]
            for name, some in (("edits", edits), ("all", rows))
        }
    return found


def similarities(pairs: Sequence[ScenePair], encoder: Encoder) -> dict[int, float]:
    """Return the cosine of the two prompts of each pair."""

    def vectors(texts: Sequence[str]) -> list[Any]:
        return [vector_from(one.vector) for some in batched(texts, BATCH) for one in encoder.texts(some)]

    before, after = vectors([pair.before_text for pair in pairs]), vectors([pair.after_text for pair in pairs])
    return {pair.number: float(a @ b) for pair, a, b in zip(pairs, before, after, strict=True)}


def report(rows: Sequence[Mapping[str, Any]]) -> str:
    heads = [
        "T", "K", "setting", "rows", "CLIP ratio", "changed", "… − off", "kept", "all", "… − off", *LOOK, "copying",
        "paraphrases",
    ]  # fmt: skip
    return table(
        heads,
        [
            [
                row["steps"], row["k"], row["setting"], row["rows"], f"{row['clip_ratio'][0]:.3f}",
                f"{row['changed'][0]:.3f}", interval(row["changed_more"]), f"{row['kept'][0]:.3f}",
                f"{row['all'][0]:.3f}", interval(row["all_more"]), *(f"{row[name][0]:.3f}" for name in LOOK),
                f"{row['copying'][0]:.3f}",
                "–" if row["paraphrases_clip_ratio"] is None else f"{row['paraphrases_clip_ratio'][0]:.3f}",
            ]
            for row in rows
        ],
    )  # fmt: skip


def pays(
    rows: Sequence[Mapping[str, Any]], tables: Mapping[str, Mapping[str, Sequence[tuple[int, float]]]], setting: str
) -> str:
    """Apply the rule above at one T. Return the reason for no, and nothing for yes."""
    off, own = dict(tables["off"]["edits"]), dict(tables[setting]["edits"])
    last = max(off, default=0)
    gained = [k for k, least in own.items() if k > last or least <= off.get(k, -math.inf) - 0.05]
    if not gained:
        return f"no later level: {sorted(own.items())} against {sorted(off.items())}"
    row = next(row for row in rows if row["setting"] == setting and row["k"] == max(gained))
    for name in LOOK:
        if row[name][1] is None or row[name][1] < BOUNDS[name].limit:
            return f"K = {row['k']} gained, {name} {row[name][0]:.3f} (bound {row[name][1]:.3f})"
    if row["all_more"][2] < 0:
        return f"K = {row['k']} gained, all attributes {interval(row['all_more'])} against off"
    if row["paraphrases_clip_ratio"] is not None and row["paraphrases_clip_ratio"][1] < ALPHA:
        return f"K = {row['k']} gained, CLIP ratio of paraphrases {row['paraphrases_clip_ratio'][0]:.3f}"
    before = max((k for k in off if k < row["k"]), default=0)
    if row["rows"] >= 2 * (row["steps"] - before):
        return f"K = {row['k']} gained, at {row['rows']} rows instead of {2 * (row['steps'] - before)}"
    return ""


def main(given: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--model", default="bundled:large")
    parser.add_argument("--count", type=int, default=96, help="scene pairs")
    parser.add_argument("--kinds", nargs="+", default=(), help="kinds of change; all when not given")
    parser.add_argument("--steps", type=int, default=5, help="T of the reused runs")
    parser.add_argument("--ks", type=int, nargs="+", default=(1, 2, 3), help="start steps")
    parser.add_argument("--settings", nargs="+", default=("off",))
    parser.add_argument("--seed", type=int, default=18, help="seed of the scene pairs")
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    parser.add_argument("--work", type=Path, default=Path("out/realignment"), help="folder of images and states")
    parser.add_argument("--figures-only", action="store_true", help="generate nothing")
    asked = parser.parse_args(given)
    quiet()
    torch.set_num_threads(asked.threads)
    on, card, encoder = machine(), find_card(asked.model), open_encoder("bundled:clip")
    plan = Plan(asked.steps, asked.ks, tuple(dict.fromkeys(("off", *asked.settings))))
    for setting in plan.settings:
        Realignment.read(setting)
    pairs = _pairs(asked.count, asked.seed, asked.kinds)
    folder = asked.work / f"{card.name}-{asked.seed}"
    store = Store(folder)
    if not asked.figures_only:
        family, progress = RealignedFamily(card), Remaining("pairs", len(pairs))
        for some in batched(pairs, AT_ONCE):
            generate(family, some, plan, store)
            progress.advance(len(some))
    pairs = [pair for pair in pairs if _whole(pair, plan, store)]
    scores, similarity = score(pairs, plan, store, encoder, folder / "scores.jsonl"), similarities(pairs, encoder)
    rows, tables = figures_of(pairs, plan, scores), tables_of(pairs, plan, scores, similarity)
    print(report(rows))
    verdicts = {}
    for setting in plan.settings:
        verdicts[setting] = "" if setting == "off" else pays(rows, tables, setting) or "pays"
        print(f"\n{setting}: edits {tables[setting]['edits']}; all {tables[setting]['all']}; {verdicts[setting]}")
    settings = settings_of(asked) | {
        "pairs": len(pairs), "alpha": ALPHA, "weights_hash": card.weights_hash, "encoder_hash": encoder.hash,
    }  # fmt: skip
    figures = {"points": rows, "tables": tables, "verdicts": verdicts}
    record(f"realignment_t{plan.steps}", figures, settings, on=on, folder=asked.out)


def _pairs(count: int, seed: int, kinds: Sequence[str]) -> list[ScenePair]:
    """Return the first `count` pairs of these kinds of change."""
    some = (pair for pair in scene_pairs(20 * count, seed) if not kinds or pair.kind in kinds)
    return list(islice(some, count))


def batched(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    yield from (items[start : start + size] for start in range(0, len(items), size))


def _whole(pair: ScenePair, plan: Plan, store: Store) -> bool:
    names = ["noise", f"before-{plan.steps}", *(plan.name(k, setting) for k, setting in plan.images())]
    return all(store.has(pair, f"{name}.png") for name in names)


if __name__ == "__main__":
    main()
