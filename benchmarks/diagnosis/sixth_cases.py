"""A sixth author's cases, who knew none of the rules: PyTorch alone, with DistributedDataParallel, FSDP2, ZeRO and Horovod.

Seven of them look unusual, and nothing is wrong in them.
"""

from fresh_cases import TWO, stranger

SIXTH_STRANGERS = (
    stranger("prices of stamps", "stamp_prices", "data", recorder="instrument"),
    stranger("voices of a choir", "choir_voices", "communication", recorder="instrument"),
    stranger("types of clouds", "cloud_types", "straggler", (), (1,), recorder="profiler"),
    # Rank 0 waits in it, but all ranks pickle.
    stranger("bids in auctions", "auction_bids", "communication", recorder="instrument", also=("compute",)),
    stranger("metres of poems", "poem_metres", "communication", recorder="instrument"),
    stranger("dances of bees", "bee_dances", "straggler", (), (0,), recorder="instrument", size=3, may_lack_cores=True),
    stranger("steps of recipes", "recipe_steps", "healthy", recorder="instrument"),
    stranger("briefs of cases", "legal_briefs", "healthy", recorder="instrument"),
    stranger("buoys at sea", "ocean_buoys", "healthy", recorder="instrument", steps=180),
    stranger("calls of whales", "whale_calls", "compute", (), TWO, steps=160),
    stranger("labels of wines", "wine_labels", "compute", (), TWO, steps=160),
    stranger("knots in strings", "knots", "compute", (), TWO, steps=160),
    stranger("pairs of patents", "patent_pairs", "communication"),
    stranger("cameras of traffic", "traffic_cameras", "data", steps=160),
    stranger("songs that are skipped", "song_skips", "data", steps=160),
    stranger("pages of Braille", "braille_pages", "healthy", steps=180),
    stranger("boats that tug", "tug_boats", "healthy", steps=200),
    stranger("strokes of ink", "ink_strokes", "healthy", steps=160),
    stranger("cranes of a harbour", "harbour_cranes", "straggler", (), (2, 3), size=4, may_lack_cores=True),
    stranger("maps of lichens", "lichen_maps", "communication", size=4, also=("compute",), may_lack_cores=True),
    stranger("tiles of a mosaic", "mosaic_tiles", "compute", (), TWO, steps=160, recorder="instrument"),
    stranger("lines of kites", "kite_lines", "healthy", steps=180),
)
