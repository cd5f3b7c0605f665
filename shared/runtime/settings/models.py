"""Models: the models that generate images, the encoder, and the devices they run on."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr

from shared.runtime.settings.section import Section


class Models(Section):
    """Models and workers. The defaults run the bundled models."""

    large: str = Field(
        "bundled:large",
        description="Model that generates from noise: a name of `afterimage models list`, a folder in diffusers' "
        "layout, or a hub id.",
    )
    small: str = Field(
        "",
        description="Models that refine image hits, best first, separated by commas, for example bundled:small; "
        "empty: none.",
    )
    video: str = Field(
        "bundled:motion",
        description="Model that generates clips, for requests of modality video: a bundled name, a folder, or a hub "
        "id; empty: none.",
    )
    encoder: str = Field(
        "bundled:clip", description="CLIP encoder of texts and images: a bundled name, a folder, or a hub id."
    )
    extractor: str = Field(
        "grammar",
        description="Extractor of object and background from a prompt: grammar, bundled:extractor, a Llama by folder, "
        "hub id or .gguf file, or the URL of a server with OpenAI's API (http://host:8000/v1, a `#name` at its end "
        "names the model); empty: none, so that only whole prompts are searched.",
    )
    extractor_key: SecretStr = Field(SecretStr(""), description="Bearer token for the extractor's server; empty: none.")
    extract_tokens: int = Field(
        77,
        ge=8,
        le=4096,
        description="Tokens of a prompt that the extractor reads, and tokens of its answer at most: as many as the "
        "video model reads (FlexCache §5). CLIP text encoders read 77.",
    )
    device: str = Field(
        "auto", description="Device of the models: auto (a GPU where there is one), cpu, cuda, cuda:1 …"
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="Number format of weights and computation; auto takes the format of the model's card, and float32 "
        "on a CPU.",
    )
    sampler: Literal["auto", "ddim", "dpm++2m", "flow_match_euler", "flow_match_euler_even"] = Field(
        "auto",
        description="Sampler of every model; auto takes the sampler of each model's card. dpm++2m needs fewer steps "
        "than ddim. The two share cached states where the model's timestep_spacing is trailing.",
    )
    offload: Literal["none", "model", "sequential"] = Field(
        "none",
        description="Placement of weights. With none, all are on the device. With model, text encoders, denoiser and "
        "VAE take turns there. With sequential, text encoders and denoiser load layer by layer, which needs the least "
        "memory and is slowest.",
    )
    torch_threads: int = Field(
        0,
        ge=0,
        le=256,
        description="CPU threads of the denoiser; 0 takes the fastest number, which the worker measures while it runs.",
    )
    max_rows: int = Field(
        8,
        ge=1,
        le=512,
        description="Requests that share one denoising step of a worker; frames of clips count as rows, and a clip of "
        "more than max_rows frames runs without other clips. A larger batch raises throughput, memory use and the time "
        "of each step.",
    )
    scheduler: Literal["priority", "slack"] = Field(
        "priority",
        description="Which waiting requests join a worker's batch: priority takes the highest priority, then the "
        "earliest deadline; slack takes the least slack by predicted step times, and keeps those out that would make a "
        "running request late. Where no request has a deadline both decide alike, but for requests that waited long.",
    )
    set_aside: bool = Field(
        False,
        description="With scheduler=slack: set running requests aside between two steps where that saves a deadline "
        "and makes no request late that was predicted on time. Each request is set aside at most once.",
    )
    batch_invariant: int = Field(
        0,
        ge=0,
        le=512,
        description="Rows N to which every batch is padded, on one thread, so that results are bit-identical in any "
        "batch; 0: off. Each step then computes N rows.",
    )
    layout: Literal["auto", "groups", "patches", "packed"] = Field(
        "groups",
        description="Batches of a denoising step: groups runs one batch per size of image; patches (models with "
        "a UNet) and packed (sd3, flux, sana) run all sizes in one batch; auto takes the faster of these two for each "
        "step, by `afterimage profile --mixes` and trials of single steps. Clips, other families and batch_invariant "
        "keep groups.",
    )
    patch_px: int = Field(
        0,
        ge=0,
        le=4096,
        description="Side of a patch in pixels, for layout=patches; 0: the largest that divides all sizes of the "
        "model's card, or a quarter of the default size for a range of sizes. An image that patches do not fill runs "
        "in a batch of its own size.",
    )
    step_reuse: Literal["off", "auto"] = Field(
        "off",
        description="Reuse of block outputs between steps: off computes every block in every step; auto skips blocks "
        "for images, or patches, whose input hardly changed, where `afterimage profile --reuse` wrote step_reuse.json "
        "beside the weights (for family unet with this layout and patch_px), in requests of at least as many "
        "steps as it was judged at. Families unet, sd3, flux and sana; batch_invariant keeps it off.",
    )
    regions: Literal["off", "on"] = Field(
        "off",
        description="With on, an image that starts from another one's latent computes only the patches that change: "
        "the others keep that image's trajectory until shortly before the end. Needs layout=patches, which costs more "
        "time than it saves on a CPU; batch_invariant must be 0. Family unet; other families compute whole images.",
    )
    resident_bytes: int = Field(
        0,
        ge=0,
        description="Bytes of weights that a worker keeps loaded; the least recently used model is unloaded first. "
        "0: no limit.",
    )
    workers: int = Field(
        1, ge=1, le=64, description="Workers in the all-in-one process. The global monitor assigns a model to each."
    )
