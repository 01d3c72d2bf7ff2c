"""Faults that no rule was written for, in small scripts as anybody writes them (fresh/): hooks, locks, threads, sharding.

A finding that says where the time is (rank, part) without a name for the cause is right; another cause is not.

Strangers are whole programs, with data, a model, an optimizer and a schedule of their own.  There are rules for what is wrong
in them, so it has to be named; five do what looks wrong and is not.
"""

from typing import Any

from case import Case

TWO = (0, 1)
#: Findings that say when or where, but not what, on all ranks.
_WHERE = ("unexplained", "host-code", "periodic-stalls", "outlier-steps", "slow-stretch")
_LOADER = ("slow-loader", "slow-loader-on-some-ranks", "unexplained", "periodic-stalls", "outlier-steps")
_HOST = ("slow-host-code", "periodic-slow-host-code", "unexplained")
_BACKWARD = ("slow-backward", "unexplained")
_LOCK = ("interpreter-lock", "blocked-forward", "blocked-backward", "blocked-optimizer")


def _case(
    name: str,
    script: str,
    class_: str,
    causes: tuple[str, ...] = (),
    ranks: tuple[int, ...] = (),
    *,
    recorder: str = "hvd",
    on: int | None = None,
    size: int = 2,
    also: tuple[str, ...] = (),
    also_causes: tuple[str, ...] = (),
    environment: dict[str, str] | None = None,
    arguments: tuple[str, ...] = (),
    has_load: bool = False,
    transport: str = "",
    may_lack_cores: bool = False,
    framework: str = "",
) -> Case:
    """A script, with its fault on rank `on` or on all."""
    is_healthy = class_ == "healthy"
    faulty = () if is_healthy else ("--faulty", *(() if on is None else ("--rank", str(on))))
    return Case(
        name,
        "none",
        class_,
        causes,
        ranks,
        arguments=arguments,
        faulty_only=faulty,
        environment=environment or {},
        transport=transport,
        ddp="" if recorder == "hvd" else recorder,
        size=size,
        also=also,
        also_causes=also_causes,
        has_load=has_load,
        may_lack_cores=is_healthy or may_lack_cores,
        script=f"fresh/{script}.py",
        framework=framework,
    )


HOOKS = (
    _case("a hook sleeps on rank 1", "gradient_hook", "straggler", _BACKWARD, (1,), recorder="instrument", on=1),
    _case("a hook sleeps on rank 0, profile", "gradient_hook", "straggler", _BACKWARD, (0,), recorder="profiler", on=0),
    _case(
        "a hook sleeps everywhere",
        "gradient_hook",
        "compute",
        ("blocked-backward", "unexplained"),
        TWO,
        recorder="instrument",
    ),
    _case("a hook computes on rank 0", "gradient_penalty_hook", "straggler", _BACKWARD, (0,), on=0),
    _case(
        "a hook computes on rank 2 of 3",
        "gradient_penalty_hook",
        "straggler",
        _BACKWARD,
        (2,),
        recorder="instrument",
        on=2,
        size=3,
    ),
)
REDUCTIONS = (
    _case("reduced after each of four micro-batches", "micro_batches", "communication", recorder="instrument"),
    _case("reduced after each of four, profile", "micro_batches", "communication", recorder="profiler"),
    _case("batch norms synchronised", "sync_batch_norm", "communication"),
    _case(
        "four hundred tiny parameters, no fusion",
        "tiny_parameters",
        "communication",
        ("many-small-collectives",),
        environment={"HOROVOD_FUSION_THRESHOLD": "0"},
        arguments=("--steps", "25"),
        transport="gloo",  # through shared memory a collective costs little more than a tensor in a fused one
    ),
    # Through shared memory, as by default: 26 MB a step are most of these steps all the same.
    _case("a dense embedding", "dense_embedding", "communication", ("oversize-gradient", "bandwidth-bound")),
    _case("a dense embedding, recorded DDP", "dense_embedding", "communication", recorder="instrument"),
    _case(
        "looking for unused parameters",
        "unused_parameters",
        "communication",
        recorder="instrument",
        also=("compute", "healthy"),
    ),
    _case("sharded layer by layer", "sharded_small", "communication", recorder="instrument"),
)
LOOPS = (
    _case("compiled anew for each shape", "recompiling", "compute", (), TWO, recorder="instrument"),
    _case("gradients clipped by items", "clip_by_items", "compute", _WHERE, TWO),
    _case("a moving average by copies", "moving_average", "compute", _WHERE, TWO, recorder="instrument"),
    _case("a slow metrics server on rank 0 of 3", "metrics_socket", "straggler", _HOST, (0,), on=0, size=3),
    _case("a log that is synced", "log_fsync", "compute", _WHERE, TWO),
    _case("a log that is synced on rank 1", "log_fsync", "straggler", _HOST, (1,), on=1),
    _case("a program each step", "subprocess_each_step", "compute", _WHERE, TWO, recorder="instrument"),
    _case("a list shuffled at each epoch", "shuffled_list", "compute", _WHERE, TWO, recorder="instrument"),
    _case("60 MB touched each step", "touch_memory", "compute", _WHERE, TWO),
    _case("double precision on rank 1", "double_precision", "straggler", _HOST, (1,), recorder="instrument", on=1),
    _case(
        "double precision on rank 1, profile", "double_precision", "straggler", _HOST, (1,), recorder="profiler", on=1
    ),
    _case("rates tried every twelfth step", "rate_finder", "compute", (), TWO),
    _case("histograms on rank 0", "histograms", "straggler", _HOST, (0,), recorder="instrument", on=0),
    _case("a thread that cuts texts", "tokenizer_thread", "compute", _LOCK, TWO, recorder="instrument"),
    _case("a thread that cuts texts on rank 0", "tokenizer_thread", "straggler", (), (0,), on=0),
    _case("a thread that formats logs", "logging_thread", "compute", _LOCK, TWO),
)
DATA = (
    _case("batches pickled as lists", "big_collate", "data", _LOADER, also=("compute",)),
    _case("workers that share a lock", "worker_lock", "data", _LOADER, recorder="instrument"),
    _case("few samples that take long", "long_tail", "data", (), also=("straggler",)),
)
RANKS = (
    _case("sequences of any length", "sequence_lengths", "straggler", ("uneven-batches", "stragglers-in-turn"), size=3),
    _case("rank 3 late, pairs of ranks", "two_groups", "straggler", (), (3,), recorder="instrument", on=3, size=4),
    _case("sharded, rank 0 late", "sharded", "straggler", (), (0,), recorder="instrument", on=0),
)
HEALTHY = (
    _case("tiny DDP", "tiny", "healthy", recorder="instrument"),
    _case("tiny DDP, four ranks", "tiny", "healthy", recorder="instrument", size=4),
    _case("tiny", "tiny", "healthy", size=3),
    _case("tiny DDP, other load", "tiny", "healthy", recorder="instrument", has_load=True),
    _case("small DDP, other load", "plain", "healthy", recorder="instrument", has_load=True),
    _case("small, four ranks, other load", "plain", "healthy", size=4, has_load=True),
    _case("small, profile", "plain", "healthy", recorder="profiler", size=3),
    _case("sharded", "sharded", "healthy", recorder="instrument"),
    _case("one rank has more data", "longer_dataset", "healthy"),
)
HABITS = (
    _case("a locked log on a shared disk", "file_lock", "compute", (*_WHERE, "slow-host-code", "unexplained"), TWO),
    _case("a second loader without workers", "two_loaders", "data", ("no-workers", "slow-loader", "unexplained")),
    _case("rows from a slow server", "streamed_rows", "data", _LOADER),
    _case("anomaly detection", "anomaly_detection", "compute", (), TWO, recorder="instrument"),
    _case("anomaly detection on rank 1", "anomaly_detection", "straggler", (), (1,), on=1),
    _case("the best weights, often", "best_so_far", "compute", (*_WHERE, "checkpoint-stall"), TWO),
    _case("the best weights, often, on rank 0", "best_so_far", "straggler", (), (0,), recorder="instrument", on=0),
    _case("parameters broadcast again and again", "broadcast_often", "communication"),
    _case("predictions gathered in each step", "gathered_predictions", "communication", also=("compute",)),
    _case("twice the batch on rank 1", "larger_batches", "straggler", (), (1,), on=1),
    _case(
        "twice the batch on rank 2 of 3", "larger_batches", "straggler", (), (2,), recorder="instrument", on=2, size=3
    ),
    _case(
        "garbage collected by hand", "garbage", "compute", (*_WHERE, "garbage-collection"), TWO, recorder="instrument"
    ),
    _case("an optimizer in Python", "optimizer_in_python", "compute", (), TWO),
    _case(
        "an optimizer in Python on rank 0", "optimizer_in_python", "straggler", (), (0,), recorder="instrument", on=0
    ),
    _case("a batch sampler that sorts", "sorted_by_length", "data", (), recorder="instrument", also=("compute",)),
    _case("validation on all ranks, Horovod", "validation", "compute", _WHERE, TWO),
    _case("validation on all ranks, recorded DDP", "validation", "compute", _WHERE, TWO, recorder="instrument"),
    _case("the largest gradients only", "top_gradients", "compute", (), TWO),
    _case("the largest gradients only, on rank 1", "top_gradients", "straggler", (), (1,), recorder="instrument", on=1),
)
FRESH_CASES = HOOKS + REDUCTIONS + LOOPS + DATA + RANKS + HEALTHY + HABITS


def stranger(
    name: str,
    script: str,
    class_: str,
    causes: tuple[str, ...] = (),
    ranks: tuple[int, ...] = (),
    *,
    steps: int = 120,
    **more: Any,
) -> Case:
    """A whole program, which has a length of its own."""
    return _case(name, script, class_, causes, ranks, arguments=("--steps", str(steps)), **more)


# What a setting costs, a run alone does not tell: on a loaded machine the load comes before it.
STRANGERS = (
    stranger("support tickets", "support_tickets", "data", ("slow-loader",)),
    stranger(
        "tiles from an archive",
        "tiles_from_archive",
        "data",
        ("slow-loader-on-some-ranks",),
        (1,),
        recorder="instrument",
    ),
    stranger("weight histograms", "weight_histograms", "compute", ("host-code",), TWO, recorder="instrument"),
    stranger("a head is trained", "finetune_head", "compute", ("costly-settings",), TWO, may_lack_cores=True),
    stranger(
        "sensor windows",
        "sensor_autoencoder",
        "compute",
        ("costly-settings",),
        TWO,
        recorder="instrument",
        may_lack_cores=True,
    ),
    stranger("click rates", "click_rate", "straggler", ("slow-host-code",), (0,), recorder="instrument", size=3),
    stranger("frames of speech", "speech_frames", "straggler", ("slow-forward",), (0,), steps=90),
    stranger("metrics of each class", "per_class_metrics", "communication", ("blocking-calls",), size=4),
    stranger(
        "a language model's monitor",
        "char_lm_monitor",
        "straggler",
        (),
        (0,),
        also_causes=("interpreter-lock",),
    ),
    stranger(
        "a recommender's items",
        "item_embeddings",
        "compute",
        ("costly-settings",),
        TWO,
        also=("communication",),
        may_lack_cores=True,
    ),
    stranger("nodes of a graph", "graph_nodes", "compute", ("garbage-collection",), TWO, recorder="instrument"),
    stranger("sentences of many lengths", "translate_varlen", "healthy"),
    stranger("a residual network", "resnet_large_batch", "healthy", recorder="instrument"),
    stranger(
        "a forecaster with callbacks",
        "forecaster_callbacks",
        "healthy",
        size=3,
        steps=140,
        # They are short epochs, and it does collect at the end of each.
        also_causes=("garbage-collection",),
    ),
    stranger("gradients accumulated", "accumulate_ddp", "healthy", recorder="instrument", steps=160),
    stranger("images that grow", "progressive_resize", "healthy"),
)

# A second author's.  Three ranks on two cores lack cores in any case.
MORE_STRANGERS = (
    stranger("tags of words", "crf_tagger", "compute", ("python-loop",), TWO),
    stranger("music by events", "music_events", "compute", ("python-loop",), TWO, recorder="instrument"),
    stranger("masks of leaves", "leaf_masks", "compute", ("slowing-down",), TWO, recorder="instrument"),
    stranger("few scans", "few_scans", "data", ("worker-start-up",)),
    stranger("light curves", "light_curves", "data", ("slow-loader",), recorder="instrument"),
    stranger("faces", "emoji_vae", "straggler", ("periodic-slow-host-code",), (0,)),
    stranger("clauses of contracts", "contracts", "straggler", ("uneven-batches",), (1,)),
    stranger(
        "a memory bank",
        "memory_bank",
        "communication",
        ("repeated-broadcasts",),
        recorder="instrument",
        size=3,
        may_lack_cores=True,
    ),
    stranger("words that are spoken", "keyword_spotting", "compute", ("recomputation",), TWO),
    stranger("sharpness", "sharp_minima", "healthy", recorder="instrument"),
    stranger("textures", "texture_gan", "healthy"),
    stranger("heat", "heat_equation", "healthy", size=3, may_lack_cores=True),
)

# A third author's, who knew none of the rules.
THIRD_STRANGERS = (
    stranger("the echo of a room", "echo_tail", "compute", ("slow-stretch",), TWO),
    stranger("captions", "captions_clipped", "communication", ("reduced-again",)),
    stranger("heartbeats", "heartbeats", "compute", ("starved-of-cores",), TWO),
    stranger("seismic phases", "seismic_phases", "compute", ("host-code-in-model",), TWO),
    stranger("bird songs", "bird_songs", "data", (), TWO),
    stranger("distilled pets", "distilled_pets", "straggler", ("slow-forward",), (0,), size=4),
    stranger("point clouds", "point_clouds", "communication", ("many-small-collectives",), recorder="instrument"),
    stranger("rare species", "rare_species", "data", ("epoch-start",), TWO, recorder="instrument"),
    stranger("baskets", "baskets", "data", ("slow-loader-on-some-ranks",), (2, 3), recorder="instrument", size=4),
    stranger("river levels", "river_levels", "straggler", ("starved-rank",), (1,), recorder="instrument"),
    stranger("returns of a lidar", "lidar_returns", "straggler", (), (1,), recorder="instrument", size=3),
    stranger("grades of retinas", "retina_grades", "compute", ("periodic-stalls",), TWO, recorder="instrument"),
    stranger("pendulums", "pendulums", "healthy"),
    stranger("words in a loop", "looped_words", "healthy", size=3),
    stranger("far apart", "far_apart", "healthy", recorder="instrument"),
    stranger("a painted field", "painted_field", "healthy", recorder="instrument"),
)

# A fourth author's, who knew none of the rules either: TensorFlow, Keras on each of its backends, and JAX.
FOURTH_STRANGERS = (
    stranger("noise of turbines", "turbine_noise", "compute", (), TWO, steps=100, framework="tensorflow"),
    stranger("pressed flowers", "pressed_flowers", "data", (), TWO, framework="tensorflow"),
    stranger("tables of tides", "tide_tables", "data", (), TWO, framework="tensorflow"),
    stranger("traffic signs", "traffic_signs", "compute", (), TWO, framework="tensorflow"),
    stranger(
        "spectra of stars",
        "star_spectra",
        "straggler",
        (),
        (0,),
        size=4,
        may_lack_cores=True,
        framework="tensorflow",
    ),
    stranger("topics of the news", "news_topics", "communication", framework="tensorflow"),
    stranger("samples of soil", "soil_samples", "communication", framework="tensorflow"),
    stranger(
        "fields from above",
        "satellite_fields",
        "data",
        (),
        (2,),
        size=3,
        may_lack_cores=True,
        framework="tensorflow",
    ),
    stranger("readings of meters", "meter_readings", "data", (), TWO, framework="keras"),
    stranger("lengths of proteins", "protein_lengths", "compute", (), TWO, steps=80, framework="optax"),
    stranger("colours of lakes", "lake_colours", "compute", (), TWO, framework="optax"),
    stranger("pollen of birches", "birch_pollen", "straggler", (), (1,), framework="keras"),
    stranger("glass fibres", "glass_fibres", "healthy", framework="tensorflow"),
    stranger("a valley is sought", "valley_seeker", "healthy", framework="optax"),
    stranger("forged coins", "forged_coins", "healthy", framework="tensorflow"),
)

# A fifth author's, who knew none of the rules: all four frameworks; eight look unusual, and nothing is wrong in them.
FIFTH_STRANGERS = (
    stranger("frauds by card", "card_fraud", "compute", (), TWO, framework="scipy"),
    stranger("ice on the sea", "sea_ice", "communication", recorder="instrument", also=("compute",)),
    stranger("arrivals of buses", "bus_arrivals", "communication", size=3, also=("compute",), may_lack_cores=True),
    stranger("tracks of cells", "cell_tracks", "data", recorder="instrument"),
    stranger("heights of glaciers", "glacier_heights", "data", (), (1,), framework="h5py"),
    stranger("pairs of sentences", "sentence_pairs", "straggler", (), (0,)),
    stranger("a survey of the sky", "sky_survey", "communication", recorder="instrument", size=4, may_lack_cores=True),
    stranger("runners in a maze", "maze_runners", "straggler"),
    stranger("glazes in a kiln", "kiln_glazes", "healthy"),
    stranger("frost on windows", "frost_flowers", "healthy"),
    stranger("an arm that reaches", "robot_arm", "healthy", steps=400),
    stranger("orbits of comets", "comet_orbits", "healthy", recorder="instrument"),
    stranger("sizes of hail", "hail_stones", "data", framework="tensorflow"),
    stranger("lifts that wait", "lift_dispatch", "compute", (), TWO, framework="tensorflow"),
    stranger("slides of rocks", "rock_slides", "compute", (), TWO, framework="tensorflow"),
    stranger("depth of snow", "snow_depth", "straggler", (), (0,), size=3, may_lack_cores=True, framework="tensorflow"),
    stranger("wings of moths", "moth_wings", "healthy", framework="tensorflow"),
    stranger("dust of a quarry", "quarry_dust", "healthy", framework="tensorflow"),
    stranger("tags of prices", "price_tags", "data", framework="keras", also=("compute",)),
    stranger("rings of trees", "tree_rings", "compute", (), TWO, steps=160, framework="keras"),
    stranger("spirals of shells", "shell_spirals", "healthy", framework="keras"),
    stranger("tones of violins", "violin_tones", "compute", (), TWO, framework="optax"),
    stranger("clusters of stars", "star_clusters", "communication", framework="optax"),
    stranger("few letters", "few_letters", "healthy", framework="optax"),
)
