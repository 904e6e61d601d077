"""The tables of docs/distributed.md, between its marks: what many ranks send and how long it takes by formula, and what a
layer's synchronization takes on this machine (synchronization_time.json).

  python benchmarks/pages/distributed.py [--latency-us 10] [--gigabytes-per-second 25]

prints the table by formula for another latency and bandwidth. A message takes latency + bytes / bandwidth:
  all-gather of n bytes per rank    (P - 1) * n / bandwidth + ceil(log2 P) * latency
  all-reduce of n bytes             2 * (P - 1) / P * n / bandwidth + 2 * ceil(log2 P) * latency
the least that a ring (bytes) and a tree (latency) need. Transports come close to the larger term.
"""
import argparse
import math

from result_page import between_marks, read, table, text_of

TITLE = "docs/distributed.md: what many ranks send, by formula, and the synchronization of a layer as measured"
RANKS = (2, 4, 8, 16, 64, 256, 1024)
LATENCY_US, GIGABYTES_PER_SECOND = 10.0, 25.0
# ResNet-50 for 1000 classes: normalizations, their channels together, parameters.
LAYERS, CHANNELS, PARAMETERS = 53, 26560, 25557032


def gather_bytes(channels, layers):
    """What a rank sends of its own in the forward pass: mean, variance and count in f64."""
    return 8 * (2 * channels + layers)


def milliseconds(ranks, size, collectives, trips, latency_us, bandwidth):
    """size: bytes that pass a rank's link; trips: of each collective through the tree."""
    return 1e3 * size / (bandwidth * 1e9) + 1e-3 * collectives * trips * math.ceil(math.log2(ranks)) * latency_us


def formula_table(latency_us=LATENCY_US, bandwidth=GIGABYTES_PER_SECOND):
    rows = []
    for ranks in RANKS:
        gather, sums, gradients = gather_bytes(CHANNELS, LAYERS), 4 * 2 * CHANNELS, 4 * PARAMETERS
        buckets = 1 + math.ceil((gradients - 2**20) / (25 * 2**20))
        link = (ranks - 1) * gather, 2 * (ranks - 1) / ranks * sums, 2 * (ranks - 1) / ranks * gradients
        times = (milliseconds(ranks, link[0], LAYERS, 1, latency_us, bandwidth),
                 milliseconds(ranks, link[1], LAYERS, 2, latency_us, bandwidth),
                 milliseconds(ranks, link[2], buckets, 2, latency_us, bandwidth))
        rows.append([f"{ranks}", *(f"{size / 1e6:.1f}" for size in link), *(f"{time:.2f}" for time in times)])
    header = ["ranks", "statistics, MB", "sums, MB", "gradients, MB", "statistics, ms", "sums, ms", "gradients, ms"]
    return table(header, rows, len(header))


def measured_table(rows):
    lines = []
    for row in rows:
        direction, channels, ranks = row["claim"].split(", ")
        lines.append([ranks.split()[0], channels.split()[0], direction, row["opponent_name"],
                      f"{row['opponent']['median']:.0f}", f"{row['measured']['median']:.0f}", f"{row['ratio']:.2f}"])
    return table(["ranks", "channels", "direction", "collective", "collective, us", "layer, us", "ratio"], lines, 3)


def write(results):
    page = results.parent / "distributed.md"
    text = text_of(page)
    text = between_marks(page, text, "formula", f"\n{formula_table()}\n\n")
    measured = read(results / "synchronization_time.json")
    note = f"{measured['processor']}, Gloo, one thread per rank"
    return {page: between_marks(page, text, "measured", f"\n{note}:\n\n{measured_table(measured['rows'])}\n\n")}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latency-us", type=float, default=LATENCY_US)
    parser.add_argument("--gigabytes-per-second", type=float, default=GIGABYTES_PER_SECOND)
    options = parser.parse_args()
    print(formula_table(options.latency_us, options.gigabytes_per_second))
