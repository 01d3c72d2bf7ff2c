"""A seventh author's cases, who knew none of the rules: PyTorch with DistributedDataParallel, FSDP2 and Horovod.

Half of them look unusual, and nothing is wrong in them.
"""

from fresh_cases import TWO, stranger

SEVENTH_STRANGERS = (
    stranger("species by their leaves", "leaf_species", "communication", recorder="instrument"),
    stranger("rulings of courts", "court_rulings", "communication", recorder="instrument", steps=100),
    stranger("ovens for bread", "bread_ovens", "straggler", (), (0,), recorder="instrument"),
    stranger("sorter of parcels", "parcel_sorter", "data", recorder="instrument", steps=150),
    stranger("gauges of rivers", "river_gauges", "compute", (), TWO, recorder="instrument"),
    stranger("bells in towers", "bell_towers", "straggler", (), (1,), steps=150),
    stranger("faces of coins", "coin_faces", "communication", size=3, steps=100, may_lack_cores=True),
    stranger("claims that are fraud", "fraud_claims", "straggler", (), (0,), steps=150),
    stranger("aids for hearing", "hearing_aids", "compute", (), TWO, steps=150),
    stranger("strings of violins", "violin_strings", "compute", (), TWO, recorder="profiler"),
    stranger("farms of wind", "wind_farms", "straggler", (), (1,), recorder="profiler", steps=150),
    stranger("nests of birds", "bird_nests", "data", recorder="profiler"),
    stranger("forms for taxes", "tax_forms", "healthy", recorder="instrument", steps=130),
    stranger("counts of sheep", "sheep_counts", "healthy", recorder="instrument", steps=160),
    stranger("glazes of tiles", "tile_glazes", "healthy", recorder="instrument", steps=150),
    stranger("cover of clouds", "cloud_cover", "healthy", recorder="instrument", steps=150),
    stranger("delays of ferries", "ferry_delays", "healthy", recorder="instrument", steps=150),
    stranger("mains for water", "water_mains", "healthy", steps=150),
    stranger("species of moths", "moth_species", "healthy", steps=150),
    stranger("loans of books", "book_loans", "healthy", steps=150),
    stranger("cabins of lifts", "lift_cabins", "healthy", steps=120),
    stranger("patterns of rugs", "rug_patterns", "healthy", recorder="profiler"),
    stranger("lattices of crystals", "crystal_lattices", "healthy", recorder="profiler", steps=150),
    stranger("pods of peas", "pea_pods", "healthy", recorder="profiler"),
)
