"""Lookup: embed a prompt, predict whether a search is worthwhile, and plan from the entries found."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from shared.runtime.settings.section import Seconds, Section, Share


class Lookup(Section):
    """Retriever, match predictor, embedder and text extractor."""

    k_table_alpha: Annotated[
        float,
        Field(
            gt=0,
            le=1,
            description="Share α of the quality from noise that a start from a latent must keep; selects the K table. "
            "A larger value saves fewer steps. NIRVANA's is 0.9.",
        ),
    ] = 0.95
    image_k_table_alpha: Annotated[
        float,
        Field(
            gt=0,
            le=1,
            description="Share α of the quality from noise that a start from a finished image must keep. A larger "
            "value saves fewer steps. The default is MoDM's.",
        ),
    ] = 0.95
    candidates: int = Field(
        8, ge=1, le=200, description="Nearest entries that the planner compares. More entries take longer to read."
    )
    further_candidates: int = Field(
        64,
        ge=1,
        le=1000,
        description="Nearest entries of a second, wider search. The planner makes this search when the first "
        "`candidates` lack latents as late as their similarity allows; a value up to `candidates` turns it off. Object "
        "and background of a prompt are searched that far at once.",
    )
    epsilon: Share = Field(
        0.0,
        description="Share of hits that are generated from noise anyway, so that images stay diverse (NIRVANA §9).",
    )
    deadline_savings: Share = Field(
        0.5,
        description="Largest `savings` that the planner takes for a request that would miss its deadline otherwise. "
        ".5 stays within the measured bound; 1 doubles the loss that it allows. 0: no plan gives up quality for a "
        "deadline.",
    )
    reuse_bound: Literal["auto", "nirvana", "flexcache", "modm"] = Field(
        "auto",
        description="Policy of reuse. nirvana: from latents, by the K table. flexcache: so too, and from pairs of "
        "latents by the paper's thresholds. modm: from finished images, by K tables. auto: from all, by the learned "
        "bound where one fits, else by K tables; from pairs where they were profiled.",
    )
    decouple: Literal["off", "video", "all"] = Field(
        "video",
        description="Requests whose object and background are extracted and searched on their own (FlexCache §4.2), "
        "and whose clips may be stitched from two entries: off (none), video (clips), all (images too).",
    )
    reuse_rules: Literal["relation", "paper"] = Field(
        "relation",
        description="relation: reuse follows what a user has seen, the share of a root and the floors; the seed draws "
        "among equal candidates. paper: the K table alone decides.",
    )
    similarity_floor: float = Field(
        0.3,
        ge=-1,
        le=1,
        description="Cosine of two prompts up to which no latent is reused, where the K table states no floor of its "
        "own. A larger value reuses less. Tables by `afterimage profile` state theirs.",
    )
    unknown_words_share: Share = Field(
        0.33,
        description="Largest share of words that the encoder was never shown, among a prompt's words that name "
        "something. Above it the image starts from noise, since the similarity of such prompts says little.",
    )
    root_share: Share = Field(
        0.05,
        description="Largest share of recent images, of users other than a root's own, that may descend from this "
        "root. A larger value saves more steps and makes users' images more alike; 1 sets no limit.",
    )
    lookup_timeout_s: Seconds = Field(
        0.5,
        description="Seconds that one index search or catalog read may take while planning. After that the plan is "
        "made without that answer.",
    )

    predictor: Literal["sketch", "svm", "always"] = Field(
        "sketch",
        description="Match predictor, which decides whether to search for latents. With sketch, the prompt is compared "
        "with a copy of the cached embeddings in memory. NIRVANA's predictor is svm (§5.2). With always, every "
        "request is searched.",
    )
    sample_predicted_misses: Share = Field(
        0.05,
        description="Share of predicted misses that are searched anyway, to measure the predictor's recall.",
    )
    sketch_margin: float = Field(
        0.01,
        ge=0,
        le=1,
        description="Cosine similarity below the K table's lowest threshold at which the sketch still predicts a hit. "
        "A larger margin overlooks fewer hits and searches more often.",
    )

    embed_wait_s: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Seconds that a text waits for other texts to share its batch. A larger value makes larger "
        "batches and delays each text.",
    )
    embed_cache: int = Field(
        4096, ge=0, description="Texts whose embeddings stay in memory, for an hour; 0 keeps none."
    )

    extract_timeout_s: Seconds = Field(
        0.5,
        description="Seconds that extracting object and background from a prompt may take. After that the gateway "
        "plans by the whole prompt only. A Llama of billions of weights needs seconds (FlexCache §6.2.1: 3.6 s).",
    )
    extract_cache: int = Field(4096, ge=0, description="Prompts whose parts stay in memory, for an hour; 0 keeps none.")
