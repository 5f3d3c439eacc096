"""Killed after every write, and answers that are lost after the write was done: by a proxy in front of the management cluster."""

import signal
import time

from proxy import Proxy
from rig import Rig
from world import MAX, Failed


def _behind_a_proxy(world, name, **spec):
    rig = Rig(world, name, start=False, **spec)
    rig.proxy = Proxy(world, name)
    rig.env = rig.proxy.env
    rig.deployment(notes={MAX: "20"})
    rig.seen = []  # what was done and never answered
    return rig


def _driven(rig, what, seconds, holds):
    """Starts Karpenter again whenever it was killed, until something holds."""
    end = time.time() + seconds * rig.world.arguments.patience
    while not holds():
        if time.time() > end:
            raise Failed(f"not within {seconds} s: {what}")
        if rig.karpenter is None or not rig.karpenter.alive():
            try:
                rig.start()
            except Failed:  # killed before it was ready
                pass
            for process in rig.world.karpenters:
                process.ended = True
        time.sleep(0.2)


def _kill_after_each_write(rig):
    def after(method, path):
        rig.seen.append(f"{method} {'/'.join(path.split('/')[6::2])}")
        for process in rig.world.karpenters:
            process.ended = True
            process.send(signal.SIGKILL)
        return True

    rig.proxy.after = after


def _lose_every_other(rig):
    count = [0]

    def after(method, path):
        count[0] += 1
        if count[0] % 2:
            rig.seen.append(f"{method} {'/'.join(path.split('/')[6::2])}")
        return count[0] % 2 == 1

    rig.proxy.after = after


def _launch_and_delete(rig, alone):
    """Three nodes, then one less; exact counts whatever happened to the answers."""
    level = lambda count: 0 if alone else count
    exact = lambda count: (rig.replicas(), len(rig.machines(all=True)), len(rig.here(rig.world.infra)), len(rig.claims())) == (level(count), count, count, count)
    rig.want(3)
    _driven(rig, "three are ready", 240, lambda: rig.initialized() == 3 and rig.running() == 3)
    launched = len(rig.seen)
    rig.give_up(rig.claims()[0]["metadata"]["name"])
    _driven(rig, "one is gone", 240, lambda: exact(2))
    rig.facts["unanswered"] = rig.seen.copy()
    rig.notes = [f"{launched} writes unanswered until three were ready, {len(rig.seen) - launched} until one was gone: {rig.seen}"]
    rig.proxy.after = None
    _driven(rig, "Karpenter runs", 60, lambda: rig.karpenter.alive())
    rig.stays("two", 30, lambda: exact(2))
    rig.same("Machines ever", len(rig.history()), 3)
    rig.at_rest()
    return rig


def _in_trouble(world, name, trouble, **spec):
    rig = _behind_a_proxy(world, name, **spec)
    trouble(rig)
    try:
        return _launch_and_delete(rig, alone=spec.get("launchMode") == "Machine")
    finally:
        rig.proxy.stop()


def a5_each_write(world):
    "killed after every single write to the management cluster, before the answer"
    return _in_trouble(world, "a5-each-write", _kill_after_each_write)


def a22_each_write(world):
    "Machine mode, killed after every single write to the management cluster, before the answer"
    return _in_trouble(world, "a22-each-write", _kill_after_each_write, launchMode="Machine")


def a16_lost_answers(world):
    "every other write to the management cluster is done and not answered"
    return _in_trouble(world, "a16-lost-answers", _lose_every_other)


def a22_lost_answers(world):
    "Machine mode, every other write to the management cluster is done and not answered"
    return _in_trouble(world, "a22-lost-answers", _lose_every_other, launchMode="Machine")
