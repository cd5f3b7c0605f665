"""Every knob of Afterimage as one frozen value, read once from AFTERIMAGE_* variables and the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict


def _listed(value: object) -> object:
    """Numbers with commas between them, as variables have them; in brackets or without."""
    if not isinstance(value, str):
        return value
    return [part.strip() for part in value.strip().removeprefix("[").removesuffix("]").split(",") if part.strip()]


Gains = Annotated[tuple[float, float, float], NoDecode, BeforeValidator(_listed)]
Steps = Annotated[tuple[int, ...], NoDecode, BeforeValidator(_listed)]
Seconds = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
CLUSTER_CHECKPOINT_STEPS = 10
"""About what a killed worker costs in steps, where others can go on."""
CLUSTER_CHECKPOINT_GAP_S = 1.0
"""And in seconds: steps that are faster than a checkpoint is written are drawn again instead."""
AFTERIMAGE_LEVELS = 10
"""Its tables have an entry for every set of levels that may be there."""


class Settings(BaseSettings):
    """Defaults run on a laptop: one process, one data directory, the bundled models."""

    model_config = SettingsConfigDict(env_prefix="AFTERIMAGE_", frozen=True, extra="forbid", populate_by_name=True)

    # ---- where things are ----
    data_dir: Path = Field(Path(".afterimage"), description="Folder of the embedded mode: catalog, blobs, lock.")
    bus_url: str = Field("inprocess:", description="inprocess:, or amqp://user:password@host:port/vhost.")
    index_url: str = Field("memory:", description="memory:, or weaviate://host:port?grpc_port=50051.")
    weaviate_hnsw_ef: int = Field(
        -1, ge=-1, le=4096, description="Candidates kept while searching; -1: 8 per wanted entry, 100 to 500."
    )
    weaviate_hnsw_ef_construction: int = Field(128, ge=8, le=4096, description="Of a collection that is made anew.")
    weaviate_hnsw_max_connections: int = Field(32, ge=4, le=512, description="Of a collection that is made anew.")
    weaviate_exact_up_to: int = Field(
        40_000, ge=1000, description="A filter that leaves fewer entries than this is answered by comparing them all."
    )
    blobs_url: str = Field(
        "",
        description="file:/path, or minio://access:secret@host:port/bucket (any S3 server); empty: the data directory.",
    )
    blobs_access_key: str = Field("", description="Of the S3 server; empty: AWS_ACCESS_KEY_ID.")
    blobs_secret_key: SecretStr = Field(SecretStr(""), description="Of the S3 server; empty: AWS_SECRET_ACCESS_KEY.")
    catalog_url: str = Field(
        "", description="sqlite+aiosqlite:///path or postgresql+asyncpg://…; empty: the data directory."
    )

    # ---- who listens where ----
    listen: str = Field("127.0.0.1:50051", description="Public gRPC address (gateway, or the service started alone).")
    metrics_listen: str = Field("127.0.0.1:9464", description="host:port of /metrics; empty: off.")
    internal_listen: str = Field("", description="Address services call each other on; empty: a private unix socket.")
    embedder_address: str = Field(
        "", description="host:port of a service that runs as its own process; replicas: ip:port,ip:port or one name."
    )
    match_predictor_address: str = Field("", description="The same.")
    retriever_address: str = Field("", description="The same.")
    cache_maintainer_address: str = Field("", description="Whom `afterimage cache` asks.")
    global_monitor_address: str = Field("", description="Where `afterimage monitor` asks a monitor of its own process.")
    catalog_timeout_s: Seconds = Field(
        3.0, description="How long a gateway waits for one answer of a catalog on a server, before it says UNAVAILABLE."
    )
    connect_wait_s: float = Field(30.0, ge=0, description="How long a start waits for servers that do not answer yet.")
    max_message_bytes: int = Field(64 * 2**20, ge=2**16, description="Of one gRPC message, its picture included.")

    # ---- models ----
    large: str = Field("bundled:large", description="Model that draws: a name of `models list`, a folder, or a hub id.")
    small: str = Field(
        "", description="Models that refine what another began, best first, with commas between them; empty: none."
    )
    encoder: str = Field("bundled:clip", description="Text/image encoder: bundled:NAME, a folder, or a hub id.")
    device: str = Field("auto", description="auto, cpu, cuda, cuda:0 …")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="What weights are loaded and compute in; auto: the model's card's, on a CPU float32."
    )
    offload: Literal["none", "model", "sequential"] = Field(
        "none",
        description="Where weights wait: on the device; text encoders, denoiser and VAE in turns; layer by layer.",
    )
    torch_threads: int = Field(
        0, ge=0, le=256, description="Threads of the denoiser; 0: the fastest, measured as it draws."
    )
    max_rows: int = Field(8, ge=1, le=512, description="Requests that share one step batch.")
    batch_invariant: int = Field(
        0, ge=0, le=512, description="N: pad every group to N rows on one thread, so that results are bit-equal."
    )
    resident_bytes: int = Field(
        0, ge=0, description="Weights that a worker keeps loaded; 0: of all models it may be assigned."
    )
    workers: int = Field(1, ge=1, le=64, description="Workers in the all-in-one process.")

    # ---- who runs which model ----
    monitor_mode: Literal["quality", "throughput"] = Field(
        "throughput", description="Hits to small models, or as many large models as the demand allows (MoDM §5.3)."
    )
    monitor_period_s: Seconds = Field(180.0, description="How often models are assigned anew.")
    monitor_window_s: Seconds = Field(180.0, description="The demand is what was asked for in so many seconds.")
    monitor_gains: Gains = Field(
        (0.6, 0.05, 0.05), description="P, I and D of the number of large models, per minute (MoDM §5.3)."
    )
    monitor_hysteresis: float = Field(
        0.25, ge=0, le=2, description="Workers beyond a half by which the PID must be off before one switches."
    )
    monitor_headroom: float = Field(0.1, ge=0, le=2, description="Share of throughput kept free of the demand.")
    monitor_catch_up_s: float = Field(
        600.0, ge=0, description="What waits counts as demand that is to be gone by then; 0: only what arrives counts."
    )
    monitor_turn_s: Seconds = Field(
        30.0,
        description="Work waits this long in the lane of a model that no worker runs, then one goes over to it; longer "
        "where a switch takes long.",
    )
    report_s: Seconds = Field(
        5.0, description="How often workers say what they run; after three silences they are gone."
    )

    # ---- requests ----
    max_prompt_chars: int = Field(2000, ge=1, description="Of a prompt, and of a negative prompt.")
    max_steps: int = Field(1000, ge=1, description="T that may be asked for; a model's card may allow fewer.")
    max_queued: int = Field(256, ge=1, description="Jobs waiting before new ones are refused with a retry delay.")
    min_free_bytes: int = Field(64 * 2**20, ge=0, description="Free disk below which new jobs are refused.")
    idempotency_keep_s: Seconds = Field(24 * 3600.0, description="How long an idempotency key holds.")
    results_keep_s: Seconds = Field(7 * 24 * 3600.0, description="How long a job that ended keeps its row and picture.")

    # ---- jobs ----
    lease_s: Seconds = Field(15.0, description="A running job not renewed for this long goes to another worker.")
    max_attempts: int = Field(3, ge=1, description="Errors of a job's own, after which it has failed for good.")
    checkpoint_every_steps: int = Field(
        -1, ge=-1, description="Crash checkpoints every m steps; 0: off; -1: 10 over a broker, off in one process."
    )
    checkpoint_gap_s: float = Field(
        -1.0, ge=-1, description="… and this long apart; -1: 1 s where the steps are left to us, 0 where they are set."
    )
    sweep_s: Seconds = Field(15.0, description="How often unconfirmed jobs and dead leases are looked for.")
    resend_s: Seconds = Field(
        600.0, description="A job that waits this long is sent to its lane again: the broker may have lost its task."
    )
    drain_s: Seconds = Field(20.0, description="How long running pictures may take to finish when the process ends.")
    fetch_timeout_s: Seconds = Field(
        5.0, description="Limit of reading one cached state or picture; beyond it the picture is drawn without it."
    )
    progress_per_s: float = Field(5.0, gt=0, le=60, description="Steps of one job that are told, at most.")

    # ---- cache ----
    cache_max_bytes: int = Field(1 * 2**30, ge=0, description="Byte budget of the cached latents.")
    eviction_policy: Literal["lcbfu", "lru", "lfu", "fifo", "lrbu", "afterimage"] = Field(
        "afterimage",
        description="Which latents leave first, and which are let in: afterimage learns what each saves; lcbfu is "
        "NIRVANA's (§5.4).",
    )
    image_tier: Literal["all", "large", "off"] = Field(
        "all", description="Whose finished pictures any model may start from: all, the large model's only, or none."
    )
    picture_policy: Literal["fifo", "lcbfu", "lru", "lfu"] = Field(
        "fifo", description="Which picture leaves first; fifo is MoDM's sliding window."
    )
    picture_max_count: int = Field(100_000, ge=0, description="Pictures that can be started from.")
    picture_max_bytes: int = Field(1 * 2**30, ge=0, description="Their byte budget, beside that of the latents.")
    picture_batch_s: float = Field(
        0.5, ge=0, description="A new picture is embedded so long after it came, with all that came meanwhile."
    )
    picture_max_age_s: float = Field(0.0, ge=0, description="A picture older than this leaves; 0: at no age.")
    capture_steps: Steps = Field((5, 10, 15, 20, 25), description="K kept, of T = 50 (NIRVANA §5.3).")
    state_codec: Literal["fp16", "fp32", "int8", "fp8", "int6", "int4"] = Field(
        "fp16", description="How latents are stored: the smaller, the more of them fit and the less exact they are."
    )
    insert_on_hit: bool = Field(True, description="Keep the states after a hit's start step too.")
    blob_grace_s: Seconds = Field(60.0, description="An evicted blob lives this much longer than its index entry.")
    cache_batch_s: float = Field(0.05, ge=0, description="Entries are inserted in batches at most this far apart.")
    cache_batch_max: int = Field(64, ge=1, description="Entries of one batch, at most.")
    maintainer_lease_s: Seconds = Field(
        15.0, description="A cache maintainer not heard of for this long is replaced by one that stands by."
    )
    quarantine_s: float = Field(
        3 * 24 * 3600.0, ge=0, description="A blob that nothing names is deleted when it has stayed so for this long."
    )
    collect_s: Seconds = Field(600.0, description="How often results expire and blobs that nothing names are sought.")
    lcbfu_initial_uses: float = Field(
        1.0, ge=0, description="Uses f that a state is credited with at birth: f·K (lrbu too)."
    )
    lcbfu_tie: Literal["oldest_use", "oldest", "smallest_k"] = Field(
        "oldest_use", description="Which of equally valuable states is evicted first."
    )

    # ---- lookup ----
    k_table_alpha: Annotated[float, Field(gt=0, le=1, description="Quality a hit keeps; NIRVANA's is .9.")] = 0.95
    image_k_table_alpha: Annotated[
        float, Field(gt=0, le=1, description="Quality that a start from a finished picture keeps; MoDM's is .95.")
    ] = 0.95
    candidates: int = Field(8, ge=1, le=200, description="Nearest entries the planner looks at.")
    further_candidates: int = Field(
        64,
        ge=1,
        le=1000,
        description="Nearest entries it looks at where those hold no state for as late a start as their similarity "
        "allows; never further where it is not above `candidates`.",
    )
    epsilon: Share = Field(0.0, description="Share of hits drawn from noise all the same (NIRVANA §9).")
    predictor: Literal["sketch", "svm", "always"] = Field(
        "sketch", description="What says whether a lookup is worth it; svm is NIRVANA's (§5.2), always asks nobody."
    )
    sample_predicted_misses: Share = Field(0.05, description="Predicted misses looked up anyway, to know recall.")
    sketch_margin: float = Field(
        0.01, ge=0, le=1, description="Cosine below the K table's lowest threshold that the sketch still calls a hit."
    )
    svm_nystroem: int = Field(0, ge=0, le=4096, description="Components of the SVM's kernel map; 0: linear.")
    remembered_entries: int = Field(10_000, ge=0, description="Entries the retriever keeps in memory, 3 KB each.")
    lookup_timeout_s: Seconds = Field(0.5, description="Limit of one index search or catalog read while planning.")
    embed_wait_s: float = Field(0.0, ge=0, le=1, description="How long a text waits for others to ride along.")
    embed_batch_max: int = Field(32, ge=1, le=1024, description="Texts encoded together.")
    embed_cache: int = Field(4096, ge=0, description="Texts whose embedding is remembered.")
    call_timeout_s: Seconds = Field(2.0, description="Limit of one call to embedder, predictor or retriever.")

    log_prompts: bool = Field(False, description="Whether the log line of a finished request names its prompt.")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="The least that is logged.")

    @model_validator(mode="after")
    def _derived_urls(self) -> Settings:
        data = self.data_dir.absolute()
        derived = {
            "catalog_url": self.catalog_url or f"sqlite+aiosqlite:///{data}/catalog.sqlite3",
            "blobs_url": self.blobs_url or f"file:{data}/blobs",
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)
        if self.checkpoint_gap_s < 0:
            gap = CLUSTER_CHECKPOINT_GAP_S if self.checkpoint_every_steps < 0 else 0.0
            object.__setattr__(self, "checkpoint_gap_s", gap)
        if self.checkpoint_every_steps < 0:  # one process that ends takes its only worker along
            every = 0 if self.bus_url.startswith("inprocess:") else CLUSTER_CHECKPOINT_STEPS
            object.__setattr__(self, "checkpoint_every_steps", every)
        if not all(gain >= 0 for gain in self.monitor_gains) or not any(self.monitor_gains[:2]):
            raise ValueError(f"monitor_gains: none below 0, P or I above it (got {self.monitor_gains})")
        if any(not 0 < k < 50 for k in self.capture_steps):
            raise ValueError(f"capture_steps: every K lies between 1 and 49 of 50 (got {self.capture_steps})")
        if self.eviction_policy == "afterimage" and len(set(self.capture_steps)) > AFTERIMAGE_LEVELS:
            raise ValueError(
                f"capture_steps: eviction_policy afterimage learns of {AFTERIMAGE_LEVELS} K at most "
                f"(got {len(set(self.capture_steps))}); name fewer, or choose another eviction_policy"
            )
        return self
