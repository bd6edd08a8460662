"""Breaks the guard's policy in one place at a time, and lists every break that no test detects.

Each mutant is a textual replacement in a copy of the package; the tests of the policy, run
against the copy, must fail. Exits with 1 when one survives or no longer applies.
"""

# ruff: noqa: E501 - the table reads best with one row a line

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = Path("tests/unit/policy")
COPIED = ("omlxd/policy", "tests/unit/policy")
TEXTS = ("omlxd/memory_text.py", "tests/unit/test_memory_text.py")
TIME_LIMIT = 600
CONFTEST = """
from hypothesis import Phase, settings

# Like tests/conftest.py, but any failure is enough: it is not reduced to its smallest form.
settings.register_profile(
    "mutants", max_examples=60, deadline=None, derandomize=True, phases=[Phase.generate]
)
settings.load_profile("mutants")


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: getattr(item.obj, "is_hypothesis_test", False))
"""
"""Plain examples come first, so that a run fails early."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """Replaces ``old``, which occurs once in the file, by ``new``."""

    name: str
    file: str
    old: str
    new: str


MUTANTS = (
    # tiers
    Mutant("the reserve has no upper bound", "tiers", "row.reserve_low), row.reserve_high)", "row.reserve_low), total)"),
    Mutant("the reserve has no lower bound", "tiers", "row.reserve_share), row.reserve_low)", "row.reserve_share), 0)"),
    Mutant("soft may equal hard", "tiers", "policy.soft < policy.hard:", "policy.soft <= policy.hard:"),
    Mutant("a mark of zero is accepted", "tiers", "0 < value <= 1", "0 <= value <= 1"),
    Mutant("a ceiling that its tier ignores is accepted", "tiers", 'if "custom_ceiling_bytes" in changed:', "if False:"),
    Mutant("a clamp by the RAM is silent", "tiers", "if asked > static:", "if False:"),
    Mutant("a clamp by the Metal cap is silent", "tiers", "if metal is not None and asked > metal:", "if False:"),
    Mutant("a user's mark gives way to the tier's", "tiers", "return self.constants.soft if self.soft_threshold is None else self.soft_threshold", "return self.constants.soft"),
    # usage
    Mutant("usage ignores the allocator", "usage", "known = [size for size in (active, own)", "known = [size for size in (own,)"),
    Mutant("memory the driver still holds counts as used", "usage", "max(0, footprint - held)", "footprint"),
    Mutant("the release window never forgets", "usage", "now - at <= RELEASE_WINDOW and size < excess", "size < excess"),
    Mutant("an old release result lives on", "usage", "and now - kept[0] <= RELEASE_REUSE", ""),
    Mutant("an old allocator sample still counts", "usage", "sample is not None and now - sample.taken_at <= SAMPLE_LIMIT", "sample is not None"),
    Mutant("a frozen reading still counts", "usage", "return value if age(reading, name, now) <= SAMPLE_LIMIT else None", "return value"),
    Mutant("the system's pressure never ages", "usage", 'return reading.os_pressure if age(reading, "os_pressure", now) <= SAMPLE_LIMIT else None', "return reading.os_pressure"),
    # ceiling: terms
    Mutant("file cache is counted twice", "ceiling", "return max(0, external - inactive)", "return external"),
    Mutant("own memory counts as other apps'", "ceiling", "file_cache(inactive, external) - own[1])", "file_cache(inactive, external))"),
    Mutant("the reserve is not left to the machine", "ceiling", "available + pushed - reserve(tier, reading.total))", "available + pushed)"),
    Mutant("the dynamic term may be negative", "ceiling", "return max(0, own[0] + available", "return (own[0] + available"),
    Mutant("unknown free memory is zero", "ceiling", "if own is None or free is None or inactive is None:\n        return None", "free, inactive = free or 0, inactive or 0\n    if own is None:\n        return None"),
    Mutant("the device cap bounds CPU memory too", "ceiling", "return reading.device_cap + max(0, footprint - graphics)", "return reading.device_cap"),
    Mutant("footprint and counters of two instants", "ceiling", "footprint, graphics = reading.counted_footprint, reading.counted_graphics", "footprint, graphics = None, None"),
    Mutant("one odd sample moves the ceiling", "ceiling", "return ordered[len(ordered) // 2], kept", "return kept.samples[-1], kept"),
    Mutant("of two samples the lower one stands", "ceiling", "ordered[len(ordered) // 2]", "ordered[(len(ordered) - 1) // 2]"),
    Mutant("each sample of a burst counts", "ceiling", "at - kept.last_at >= BURST:", "at > kept.last_at:"),
    Mutant("samples of another tier stay", "ceiling", "if kept.tier is not tier:", "if False:"),
    Mutant("the last of equal terms binds", "ceiling", "return min(terms, key=", "return min(terms[::-1], key="),
    # ceiling: bounds
    Mutant("the guard off still has a ceiling", "ceiling", "return None\n        # ``terms``", "pass\n        # ``terms``"),
    Mutant("the dynamic term stops a prefill", "ceiling", "return self.static if self.metal is None else min(self.static, self.metal)", "return self.ceiling"),
    Mutant("weights may live where the ceiling wobbles", "ceiling", "return self.static if self.device_cap is None else min(self.static, self.device_cap)", "return self.ceiling"),
    Mutant("the hot cache is counted twice", "ceiling", "max(0, size - self.hot_cache_reserved)", "size"),
    Mutant("taking the reservation off goes below zero", "ceiling", "max(0, size - self.hot_cache_reserved)", "size - self.hot_cache_reserved"),
    Mutant("the reservation exceeds the cache", "ceiling", "min(hot_cache.maximum, hot_cache.used + HOT_CACHE_SLACK)", "hot_cache.used + HOT_CACHE_SLACK"),
    Mutant("schedulers plan with marks of the whole ceiling", "ceiling", "soft_bytes=self._share(scheduler, self.soft_fraction)", "soft_bytes=self.soft"),
    Mutant("a guard that watches limits the schedulers", "ceiling", "acts = self.enabled and policy.enforce", "acts = self.enabled"),
    Mutant("changed limits keep their number", "ceiling", "generation=old.generation + 1", "generation=old.generation"),
    # pressure
    Mutant("the soft mark is ok", "pressure", "or usage < soft:", "or usage <= soft:"),
    Mutant("the hard mark is soft", "pressure", "if usage < hard else", "if usage <= hard else"),
    Mutant("the hard mark is an emergency", "pressure", "ceiling = ceilings.ceiling\n    if usage is None or ceiling is None or usage < ceiling:", "ceiling = ceilings.hard\n    if usage is None or ceiling is None or usage < ceiling:"),
    Mutant("the first poll over is an emergency", "pressure", "polls_over >= EMERGENCY_OVER_POLLS", "polls_over >= 1"),
    Mutant("far over is no emergency", "pressure", "return usage >= ceiling + EMERGENCY_OVER_BYTES or", "return"),
    Mutant("admission flaps at the mark", "pressure", "if was_paused and usage is not None and usage >= mark", "if False"),
    Mutant("admission resumes at its resume mark", "pressure", "usage is not None and usage >= mark", "usage is not None and usage > mark"),
    Mutant("a critical system pauses nothing", "pressure", "if os_pressure is OsPressure.CRITICAL:", "if False:"),
    Mutant("unknown usage keeps admission paused", "pressure", "was_paused and usage is not None and usage >= mark", "was_paused and (usage is None or usage >= mark)"),
    Mutant("the system is blamed for a mark of ours", "pressure", "if level_of(usage, ceilings) is not Level.OK:\n        return Pause.LEVEL\n", ""),
    Mutant("a paused daemon never recovers", "pressure", "return idle if loaded else", "return False if loaded else"),
    Mutant("a paused daemon loads another model", "pressure", "else not anything_loaded", "else True"),
    Mutant("who cannot say is idle", "pressure", "or active is None or active:", "or active:"),
    Mutant("the pace drops while admission is paused", "pressure", "or paused or hinted", "or hinted"),
    Mutant("a wake shortens the hint", "pressure", "max(until, fresh)", "fresh"),
    # decision
    Mutant("each tick of a burst counts", "decision", "now - state.counted_at >= BURST", "now > state.counted_at"),
    Mutant("the target moves during a tick", "decision", "tick = replace(tick, leaving=", "tick = replace(tick, target=ceilings.soft, leaving="),
    Mutant("host counters age during a tick", "decision", "now if state.tick is None else state.tick.began", "now"),
    Mutant("the system's pressure ages during a tick", "decision", "self.snapshot.reading, self.tick.began", "self.snapshot.reading, self.snapshot.now"),
    Mutant("a pause is forgotten", "decision", "was_paused = self.state.pause is not None", "was_paused = False"),
    Mutant("an unload in flight frees nothing", "decision", "freeing = sum(", "freeing = 0 * sum("),
    Mutant("an unload in flight is forgotten", "decision", "leaving=tick.leaving | in_flight", "leaving=tick.leaving"),
    Mutant("polls over the ceiling never end", "decision", "int(tick.counted) if over else 0", "int(tick.counted)"),
    Mutant("a loading model counts as loaded", "decision", "if not m.loading and not self.is_leaving(m)", "if not self.is_leaving(m)"),
    Mutant("pinned models may go", "decision", "for model in self.loaded if not model.pinned", "for model in self.loaded"),
    Mutant("a watching guard believes it acted", "decision", "ActionOutcome(action, in_flight=not enforce)", "ActionOutcome(action)"),
    Mutant("images wait for the pause", "decision", "pause = seen.state.pause if step.keep_level else seen.pause", "pause = seen.pause"),
    Mutant("store caps shrink at ok", "decision", "WalkStoreCap(1 if seen.level is Level.OK else -1)", "WalkStoreCap(-1)"),
    Mutant("store caps walk in every tick of a burst", "decision", "(walk,) if counted else ()", "(walk,)"),
    Mutant("deferrals never reset", "decision", "deferrals=0 if seen.level is Level.OK else deferrals", "deferrals=deferrals"),
    Mutant("deferrals are not counted", "decision", "int(deferred and counted)", "0"),
    Mutant("deferrals in a burst count", "decision", "int(deferred and counted)", "int(deferred)"),
    Mutant("monitor mode acts", "decision", "policy=seen.policy,", "policy=replace(seen.policy, enforce=True),"),
    Mutant("actions are repeated in a tick", "decision", "tried=seen.tick.tried | tried", "tried=seen.tick.tried"),
    # relief
    Mutant("the guard off relieves", "relief", "if not policy.enabled:", "if False:"),
    Mutant("images are kept", "relief", "    drop_images,\n    end_deferred_tick", "    end_deferred_tick"),
    Mutant("a swollen pool is not returned first", "relief", "    defer_to_pool,\n    shrink_ram_cache", "    shrink_ram_cache"),
    Mutant("an emergency defers", "relief", "or seen.emergency or seen.state.deferrals", "or seen.state.deferrals"),
    Mutant("deferring never ends", "relief", "or seen.state.deferrals >= MAX_DEFERRALS", ""),
    Mutant("a pool at its floor is swollen", "relief", "seen.usage.buffer_cache > BUFFER_CACHE_FLOOR", "seen.usage.buffer_cache >= BUFFER_CACHE_FLOOR"),
    Mutant("a reclaim nobody took ends the tick", "relief", "or taken is None or not taken.accepted", "or taken is None"),
    Mutant("what the tick gave up defers it", "relief", "gave_up = any(kind is not DropImageCache for kind, _ in seen.tick.tried)", "gave_up = seen.tried(ReclaimBufferCache)"),
    Mutant("the RAM cache shrinks at soft", "relief", "if seen.level is not Level.HARD or seen.excess == 0", "if seen.level is Level.OK or seen.excess == 0"),
    Mutant("the RAM cache goes whole", "relief", "ShrinkRamCache(seen.excess)", "ShrinkRamCache(cache.used)"),
    Mutant("free pages stay with malloc", "relief", "(ReturnFreePages(),) if dropped else ()", "()"),
    Mutant("what was dropped stays in the pool", "relief", "if (dropped or large) and", "if large and"),
    Mutant("a swollen pool stays at hard", "relief", "if (dropped or large) and", "if dropped and"),
    Mutant("relief does not stop at the soft mark", "relief", "if seen.level is not Level.OK and seen.excess > 0:\n        return None", "if seen.level is not Level.OK:\n        return None"),
    Mutant("a drained model is not unloaded first", "relief", "    unload_drained,\n    unload_idle", "    unload_idle"),
    Mutant("at soft the last model goes", "relief", " or (seen.level is Level.SOFT and len(seen.unpinned) <= 1)", ""),
    Mutant("at hard the last model stays", "relief", "(seen.level is Level.SOFT and len(seen.unpinned) <= 1)", "len(seen.unpinned) <= 1"),
    Mutant("a refused unload is tried again", "relief", " if not seen.tried(EvictModel, model.id)", ""),
    Mutant("leftover requests are forgotten", "relief", "(AbortRequests(model.id),) if model.requests else ()", "()"),
    Mutant("soft hurts running requests", "relief", "    leave_running_alone,\n    wait", "    wait"),
    Mutant("old numbers abort", "relief", "    wait_for_fresh_numbers,\n", ""),
    Mutant("aborts while the ended leave", "relief", "    wait_for_the_ended,\n", ""),
    Mutant("an emergency aborts on old numbers", "relief", "if seen.usage.fresh:", "if seen.usage.fresh or seen.emergency:"),
    Mutant("hard marks a pending unload", "relief", "if seen.emergency:\n", "if True:\n"),
    Mutant("an emergency marks nothing", "relief", "if seen.emergency:\n", "if False:\n"),
    Mutant("loads stop though something unpinned is loaded", "relief", "if seen.unpinned or not loads:", "if not loads:"),
    Mutant("a flagged load is flagged again", "relief", "if m.loading and not m.load_aborting", "if m.loading"),
    Mutant("pinned models' requests end short of an emergency", "relief", "if seen.unpinned or not seen.emergency or seen.tried(AbortRequests):", "if seen.unpinned or seen.tried(AbortRequests):"),
    Mutant("an emergency spares all requests", "relief", "    abort_everything,\n    reclaim_when_idle", "    reclaim_when_idle"),
    Mutant("an abort that meets nobody ends the tick", "relief", "is not None and not _abort_found_nothing(seen):", "is not None:"),
    Mutant("all requests are ended again and again", "relief", "or not seen.emergency or seen.tried(AbortRequests):", "or not seen.emergency:"),
    Mutant("no reclaim when idle", "relief", "    reclaim_when_idle,\n    warn", "    warn"),
    # admission
    Mutant("a model is loaded that alone reaches hard", "admission", "need.bytes >= _hard(", "need.bytes > _hard("),
    Mutant("headroom is not counted", "admission", "return self.weights_bytes + self.headroom_bytes", "return self.weights_bytes"),
    Mutant("other apps make a model too large", "admission", "need.bytes >= _hard(lowest(ceilings.stable_terms)[1], ceilings)", "need.bytes >= _hard(ceilings.admission, ceilings)"),
    Mutant("reservations are promised twice", "admission", "context.current + context.reserved + need.bytes", "context.current + need.bytes"),
    Mutant("a load may land on the soft mark", "admission", "if after < ceilings.admission_soft and not held", "if after <= ceilings.admission_soft and not held"),
    Mutant("a load may land on the hard mark", "admission", "or after < _hard(ceiling, ceilings)", "or after <= _hard(ceiling, ceilings)"),
    Mutant("something is evicted for nothing", "admission", "if victims and _fits(after - context.leaving - _size(victims), ceilings):", "if victims:"),
    Mutant("residue refuses", "admission", "if self.evicted and self.usage.fresh:", "if False:"),
    Mutant("the pool is in a load's way", "admission", "(self.usage.bytes or 0) - (self.usage.buffer_cache or 0)", "self.usage.bytes or 0"),
    Mutant("tracked sizes are not counted", "admission", "max(kept, self.usage.active or 0, self.tracked)", "max(kept, self.usage.active or 0)"),
    Mutant("old numbers refuse a load", "admission", "if not context.usage.fresh and (victims or not _fits(after, ceilings)):", "if not context.usage.fresh and victims:"),
    Mutant("old numbers make room for a load", "admission", "if not context.usage.fresh and (victims or not _fits(after, ceilings)):", "if not context.usage.fresh and not _fits(after, ceilings):"),
    Mutant("a model in use is not waited for", "admission", "if _fits(after - _size(leaving), ceilings):", "if False:"),
    Mutant("a paused daemon loads", "admission", "return ceilings.enabled and not starts", "return False"),
    Mutant("an unload on its way is not waited for", "admission", "if context.leaving:\n        return", "if False:\n        return"),
    Mutant("a stopped load begins again at once", "admission", "if context.since_stopped < STOPPED_REST and ceilings.enabled:", "if False:"),
    Mutant("a stopped load waits though the guard is off", "admission", "context.since_stopped < STOPPED_REST and ceilings.enabled", "context.since_stopped < STOPPED_REST"),
    Mutant("monitor mode refuses", "admission", "if not context.enforce and", "if False and"),
    # eviction
    Mutant("the warmest model goes first", "eviction", "(model.busy, not model.pending_unload, model.last_used, model.id)", "(model.busy, not model.pending_unload, -model.last_used, model.id)"),
    Mutant("ties are broken by the order given", "eviction", "(model.busy, not model.pending_unload, model.last_used, model.id)", "(model.busy, not model.pending_unload, model.last_used)"),
    Mutant("busy models go before idle ones", "eviction", "(model.busy, not model.pending_unload", "(not model.pending_unload"),
    Mutant("the largest goes though a colder one is enough", "eviction", "if model.bytes >= excess:\n                return (model,)", "if False:\n                return (model,)"),
    Mutant("the smallest go first", "eviction", "key=lambda model: -model.bytes", "key=lambda model: model.bytes"),
    Mutant("more goes than is needed", "eviction", "        if excess <= 0:\n            break\n", ""),
    Mutant("pinned models make room", "eviction", "return not (model.pinned or model.loading or model.unloading)", "return not (model.loading or model.unloading)"),
    Mutant("busy models make room", "eviction", "and (in_use or not model.busy)", ""),
    Mutant("what was asked to leave is forgotten", "eviction", "not model.pending_unload, ", ""),
    Mutant("what is leased without a request is ended first", "eviction", "(not m.requests, m.last_used", "(m.last_used"),
    Mutant("the requests of the warmest end first", "eviction", "(not m.requests, m.last_used", "(not m.requests, -m.last_used"),
    # memory_text
    Mutant("a bolder tier is to help a system short of memory", "memory_text", "system = mark is Mark.OS_PRESSURE", "system = False"),
    Mutant("who waits to resume is told of the soft mark", "memory_text", "return resume_mark(ceilings)", "return ceilings.soft"),
    Mutant("the advice leaves the system nothing", "memory_text", "return min(static, int(total * WIRED_ADVICE_SHARE)) // MiB", "return static // MiB"),
    Mutant("a custom ceiling asks to close apps", "memory_text", "case Binding.DYNAMIC if ceilings.tier is Tier.CUSTOM:", "case Binding.DYNAMIC if False:"),
)  # fmt: skip


def source(mutant: Mutant) -> Path:
    """The mutant's file in the repository. memory_text is outside of the policy package."""
    folder = "omlxd" if mutant.file == "memory_text" else "omlxd/policy"
    return Path(folder, f"{mutant.file}.py")


def copy_to(folder: Path) -> None:
    for part in COPIED:
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("omlxd/__init__.py", "omlxd/units.py", "tests/__init__.py", *TEXTS):
        shutil.copy(ROOT / name, folder / name)
    shutil.copy(ROOT / "tests/unit/__init__.py", folder / "tests/unit/__init__.py")
    shutil.copy(ROOT / "pyproject.toml", folder / "pyproject.toml")
    (folder / TESTS / "conftest.py").write_text(CONFTEST)


def tests_pass(mutant: Mutant | None) -> bool:
    """Whether the tests pass on a copy broken by ``mutant`` (None: on an unbroken copy)."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        folder = Path(name)
        copy_to(folder)
        if mutant is not None:
            path = folder / source(mutant)
            text = path.read_text()
            if text.count(mutant.old) != 1:
                raise RuntimeError(f"{path.name} was edited meanwhile: {mutant.name}")
            path.write_text(text.replace(mutant.old, mutant.new))
        # The table of rules names tests of other folders, which are not copied.
        others = [f"--ignore={TESTS}/test_{name}.py" for name in ("chunking", "readme")]
        options = ["-x", "-q", "-p", "no:cacheprovider", *others]
        done = subprocess.run(
            [sys.executable, "-B", "-m", "pytest", *options, str(TESTS), TEXTS[1]],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder)},
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT,
            check=False,
        )
        if done.returncode not in (0, 1):
            raise RuntimeError(f"pytest could not run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return done.returncode == 0


def misfits(mutants: Sequence[Mutant]) -> list[str]:
    """Mutants whose text does not occur exactly once, because the code has changed."""
    return [
        f"{mutant.name}: its text occurs {count} times in {mutant.file}.py"
        for mutant in mutants
        if (count := (ROOT / source(mutant)).read_text().count(mutant.old)) != 1
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-k", default="", help="only mutants whose name or file contains this")
    parser.add_argument("-j", type=int, default=os.cpu_count() or 1, help="at once")
    options = parser.parse_args()
    mutants = [m for m in MUTANTS if options.k in m.name or options.k == m.file]
    if wrong := misfits(mutants):
        print("\n".join(wrong))
        return 1
    if not tests_pass(None):
        print("the tests fail without any mutant")
        return 1
    print(f"{len(mutants)} mutants", flush=True)
    began = time.perf_counter()
    survived = 0
    with ThreadPoolExecutor(options.j) as pool:
        for mutant, passed in zip(mutants, pool.map(tests_pass, mutants), strict=True):
            if passed:
                survived += 1
                print(f"survived: {mutant.file}: {mutant.name}", flush=True)
    took = time.perf_counter() - began
    print(f"{len(mutants)} mutants, {survived} survived, {took:.0f} s")
    return 1 if survived or not mutants else 0


if __name__ == "__main__":
    sys.exit(main())
