"""Synthetic dispatch steps whose bottleneck is known, many cases at once: an FIFO simulation apart from the analyzers.

One rank sends OPERATIONS operations a step to another, whose step it is. Servers are first in, first out:

    late ─ kernel ─ ring ─ proxy + libfabric ─ NIC: max(gap, bytes / line) + latency ─ rx ─ poll

Before an operation is issued, its window must have room and, behind a fence, all earlier ones must be done. The truth
is the resource whose doubling (halved service times; for ordering, which has no speed: fences removed) shortens the
step most. Times are ns, arrays are (cases, steps); features come from the simulation's own stamps and reruns.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from efaprof.analyzers.rules import Feature
from efaprof.analyzers.student import t_quantile
from efaprof.analyzers.verdict import decide

OPERATIONS = 48
STEPS = 12  # each taken as one batch
COMPUTE_NS = 50_000.0
NEAR = 0.8  # of the best gain: as good a name for the bottleneck
LAYERS = ("compute", "skew", "kernel", "ring", "proxy", "libfabric", "nic", "rx", "poll")
SERVICES = ("late", "kernel", "ring", "proxy", "libfabric", "gap", "wire", "latency", "rx", "poll")
ISSUE = ("kernel", "ring", "proxy", "libfabric")
LABELS = (
    "skew-bound", "wire-bound/bandwidth", "wire-bound/rate", "issue-bound", "serialization-bound", "receiver-bound",
    "wire-bound/latency",
)  # fmt: skip
RESOURCE = {
    "skew-bound": ("late",), "wire-bound/bandwidth": ("wire",), "wire-bound/rate": ("gap",), "issue-bound": ISSUE,
    "receiver-bound": ("rx", "poll"), "wire-bound/latency": ("latency",),
}  # fmt: skip


@dataclass(frozen=True)
class Cases:
    """Durations by service, one row a case; `fence` is every how many operations one stands (0: none)."""

    services: dict[str, np.ndarray]
    fence: np.ndarray
    window: np.ndarray
    operations: int = OPERATIONS

    def scaled(self, names, factor):
        """The same with some services scaled."""
        return replace(self, services={name: one * (factor if name in names else 1.0)
                                       for name, one in self.services.items()})  # fmt: skip

    def unfenced(self):
        """The same without ordering."""
        return replace(self, fence=np.zeros_like(self.fence))


@dataclass
class Trace:
    """What one simulation left behind."""

    wall: np.ndarray
    parts: np.ndarray | None = None  # layer on the critical path, (layers, cases, steps)
    published: list = field(default_factory=list)
    seen: list = field(default_factory=list)
    served: list = field(default_factory=list)  # time that the proxy worked on each
    returned: list = field(default_factory=list)
    done: list = field(default_factory=list)
    limited: list = field(default_factory=list)


def draw(label, count, random):
    """Cases whose bottleneck is meant to be `label`, by a margin that varies; which it is in fact, gains say."""
    base = np.exp(random.uniform(np.log(1_000), np.log(8_000), count))

    def part(low, high):
        return base * random.uniform(low, high, count)

    flight = base * OPERATIONS
    services = {
        "late": flight * random.uniform(0.0, 0.1, count), "kernel": part(0.05, 0.5), "ring": part(0.1, 0.5),
        "proxy": part(0.05, 0.25), "libfabric": part(0.05, 0.25), "gap": part(0.05, 0.5), "wire": part(0.02, 0.25),
        "latency": flight * random.uniform(0.02, 0.3, count), "rx": part(0.05, 0.5), "poll": part(0.05, 0.5),
    }  # fmt: skip
    fence = np.zeros(count, int)
    if label == "issue-bound":
        which = random.integers(0, 3, count)
        for number, name in enumerate(("kernel", "proxy", "libfabric")):
            services[name] = np.where(which == number, base, services[name])
    elif label == "serialization-bound":
        fence = random.choice([1, 2, 4], count)
        services["latency"] = base * fence * random.uniform(2, 8, count)
    elif label == "wire-bound/latency":
        services["latency"] = flight * random.uniform(1.5, 5, count)
    elif label == "skew-bound":
        services["late"] = flight * random.uniform(1.0, 3, count)
    elif label == "proxy as slow as the NIC":
        services["gap"] = base
        services["proxy"] = services["libfabric"] = base * random.uniform(0.45, 0.55, count)
    elif label == "anything":
        services = {name: one * np.exp(random.uniform(-2, 2, count)) for name, one in services.items()}
        fence = random.choice([0, 0, 0, 1, 4], count)
    else:
        services[{"wire-bound/bandwidth": "wire", "wire-bound/rate": "gap", "receiver-bound": "rx"}[label]] = base
    return Cases(services, fence, random.choice([64, 128, 256], count))


def noisy(cases, random):
    """Durations of every step: each service of each step off by a few percent, line and gap alone exact."""
    rows = len(cases.fence)
    return replace(
        cases,
        services={
            name: one[:, None] * (1 if name in ("gap", "wire") else np.exp(random.normal(0, 0.04, (rows, STEPS))))
            for name, one in cases.services.items()
        },
    )


def simulate(cases, *, is_traced=False):
    """Run the steps; traced, every time is carried as its parts by layer, so that the last one's are the path's."""
    shape = np.broadcast_shapes(*(one.shape for one in cases.services.values()))
    service = {name: np.broadcast_to(one, shape) for name, one in cases.services.items()}
    layers = len(LAYERS) if is_traced else 1

    def add(time, layer, duration):
        made = time.copy()
        made[LAYERS.index(layer) if is_traced else 0] += duration
        return made

    def later(first, second):
        return np.where(first.sum(0) >= second.sum(0), first, second)

    zero = np.zeros((layers, *shape))
    lane = add(add(zero, "compute", COMPUTE_NS), "skew", service["late"])
    proxy = nic = rx = drained = zero
    nic_service = np.maximum(service["gap"], service["wire"])
    fence, window = cases.fence[:, None], cases.window[:, None]
    dones = []
    trace = Trace(zero)
    for number in range(cases.operations):
        lane = add(lane, "kernel", service["kernel"])
        seen = later(add(lane, "ring", service["ring"]), proxy)
        ready = add(seen, "proxy", service["proxy"])
        is_fenced = (fence > 0) & (number % np.maximum(fence, 1) == 0) & (number > 0)
        ready = np.where(is_fenced, later(ready, drained), ready)
        is_limited = np.zeros(shape, bool)
        for limit in np.unique(cases.window):
            if number >= limit:
                room = dones[number - limit]
                is_limited |= (window == limit) & (room.sum(0) > ready.sum(0))
                ready = np.where(window == limit, later(ready, room), ready)
        proxy = add(ready, "libfabric", service["libfabric"])
        nic = add(later(proxy, nic), "nic", nic_service)
        done = add(nic, "nic", service["latency"])
        dones.append(done)
        drained = later(done, drained)
        rx = add(later(done, rx), "rx", service["rx"])
        if is_traced:
            trace.published.append(lane.sum(0))
            trace.seen.append(seen.sum(0))
            trace.served.append(service["proxy"] + service["libfabric"])
            trace.returned.append(proxy.sum(0))
            trace.done.append(done.sum(0))
            trace.limited.append(is_limited)
    end = add(rx, "poll", service["poll"])
    trace.wall = end.sum(0)
    trace.parts = end if is_traced else None
    return trace


def gains(cases):
    """Mean time saved by doubling each resource, (labels, cases)."""
    wall = simulate(cases).wall
    saved = [
        wall - simulate(cases.unfenced() if label == "serialization-bound" else cases.scaled(RESOURCE[label], 0.5)).wall
        for label in LABELS
    ]
    return np.array([one.mean(axis=1) for one in saved])


def measure(cases, random):
    """Features of every case, as name → (value, lo, hi) arrays: ratios of batches with their t interval."""
    trace = simulate(cases, is_traced=True)
    wall = trace.wall
    time = wall - COMPUTE_NS
    part = dict(zip(LAYERS, trace.parts, strict=True))
    issue = sum(part[name] for name in ISSUE)
    miscalibrated = np.exp(random.normal(0, 0.05, (len(wall), 1)))
    published, returned, done = (np.array(getattr(trace, name)) for name in ("published", "returned", "done"))
    outstanding = np.array([(done[:number] > returned[number]).sum(0) + 1 for number in range(OPERATIONS)])
    no_issue = wall - simulate(cases.scaled(ISSUE, 0.0)).wall
    ratios = {
        "communication_share": time / wall, "compute_share": part["compute"] / wall, "issue_share": issue / time,
        **{f"{name}_share": part[name] / time for name in (*ISSUE, "nic")},
        "skew_share": part["skew"] / time,
        "receive_wait_share": (part["rx"] + part["poll"]) / time,
        "delta_issue": no_issue / time, "delta_issue_upper": no_issue / time,
        "delta_receive": (wall - simulate(cases.scaled(("rx", "poll"), 0.0)).wall) / time,
        "delta_fence": (wall - simulate(cases.unfenced()).wall) / time,
        "proxy_busy": np.sum(trace.served, axis=0) / time,
        "kernel_busy": np.broadcast_to(OPERATIONS * cases.services["kernel"], wall.shape) / time,
        "waiting_at_dequeue": np.mean(published[1:] <= returned[:-1], axis=0),
        "eagain_per_post": np.zeros_like(wall),
        "at_window_limit": np.mean(trace.limited, axis=0),
        "outstanding_over_limit": outstanding.mean(0) / cases.window[:, None],
        "utilisation_active": OPERATIONS * cases.services["wire"] / time,
        "message_rate": OPERATIONS * cases.services["gap"] * miscalibrated / time,
    }  # fmt: skip
    found = {name: _interval(np.broadcast_to(value, wall.shape)) for name, value in ratios.items()}
    others = np.max([part[name] for name in LAYERS[2:]], axis=0).mean(axis=1)
    largest = (part["skew"].mean(axis=1) > others).astype(float)
    grows = _grows(np.log(outstanding), np.log(done - returned))
    return found | {"skew_is_largest": (largest,) * 3, "nic_grows_with_outstanding": (grows,) * 3}


def sweep(cases):
    """Elasticities as further runs of the same would show them: operations at fixed bytes, issuers, payload."""
    time = simulate(cases).wall - COMPUTE_NS
    more = replace(cases.scaled(("wire",), 0.5), operations=2 * cases.operations)
    runs = {
        "elasticity_operations": more,
        "elasticity_parallelism": cases.scaled(("kernel", "proxy", "libfabric"), 0.5),
        "elasticity_bytes": cases.scaled(("wire",), 2.0),
    }
    return {name: _interval(np.log2((simulate(one).wall - COMPUTE_NS) / time)) for name, one in runs.items()}


def _interval(ratio):
    half = t_quantile(0.975, ratio.shape[1] - 1) * ratio.std(axis=1, ddof=1) / np.sqrt(ratio.shape[1])
    value = ratio.mean(axis=1)
    return value, value - half, value + half


def _grows(outstanding, nic):
    """1 where the time in the NIC grows with what is outstanding there (elasticity ≥ 0.5), 0 where not (< 0.2)."""
    x, y = (np.moveaxis(one, 0, -1).reshape(one.shape[1], -1) for one in (outstanding, nic))
    x, y = x - x.mean(axis=1, keepdims=True), y - y.mean(axis=1, keepdims=True)
    power = (x * x).sum(axis=1)
    slope = np.where(power > 1e-9, (x * y).sum(axis=1) / np.maximum(power, 1e-9), 0.0)
    return np.where(slope >= 0.5, 1.0, np.where(slope < 0.2, 0.0, np.nan))


def features(measured):
    """One dict of features a case; NaN is unknown."""
    rows = len(next(iter(measured.values()))[0])
    return [
        {name: Feature(name, *(float(bound[row]) for bound in bounds)) for name, bounds in measured.items()
         if not np.isnan(bounds[0][row])}
        for row in range(rows)
    ]  # fmt: skip


@dataclass(frozen=True)
class Score:
    """How verdicts on cases of one kind came out."""

    cases: int
    right: int
    abstained: int
    wrong: int
    labels: dict[str, int]


def judged(label, count, seed, *, is_swept=False):
    """Features and gains of cases; those drawn for a label whose bottleneck is another in fact are left out."""
    random = np.random.default_rng(seed)
    cases = noisy(draw(label, count, random), random)
    saved = gains(cases)
    best = saved.argmax(axis=0)
    measured = features(measure(cases, random) | (sweep(cases) if is_swept else {}))
    if label not in LABELS:
        return measured, saved
    rows = np.flatnonzero(best == LABELS.index(label))
    return [measured[row] for row in rows], saved[:, rows]


def score(measured, saved, name=lambda known: decide(known).path):
    """Right: the best label or one as good (NEAR); abstained: none, or several with a right one; else wrong."""
    counts = {"right": 0, "abstained": 0, "wrong": 0}
    labels: dict[str, int] = {}
    for row, known in enumerate(measured):
        path = name(known)
        labels[path] = labels.get(path, 0) + 1
        good = {LABELS[at] for at in np.flatnonzero(saved[:, row] >= NEAR * saved[:, row].max())}
        named = set(path.removeprefix("mixed(").removesuffix(")").split(", "))
        if path == "inconclusive" or (len(named) > 1 and named & good):
            counts["abstained"] += 1
        else:
            counts["right" if named <= good else "wrong"] += 1
    return Score(len(measured), labels=labels, **counts)
