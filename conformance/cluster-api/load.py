"""How much is written and how long it takes: bursts, held creations, deletions nobody carries out, rollouts under consolidation."""

import time

from rig import CLAIM, Rig
from world import MAX, annotations, is_true, stamp

OFTEN = {"consolidationPolicy": "WhenEmptyOrUnderutilized", "consolidateAfter": "5s", "budgets": [{"nodes": "100%"}]}


def held_paused(world):
    "a creation held for 2 min by a paused Cluster, launches timing out every 30 s"
    rig = Rig(world, "held-paused", timeouts={"launch": "30s", "surplus": "20s"})
    rig.deployment(notes={MAX: "10"})
    time.sleep(1)
    rig.patch("Cluster", rig.cluster, {"spec": {"paused": True}})
    rig.want(3)
    rig.stays("nothing is asked for", 120, lambda: rig.replicas() == 0)
    rig.facts["NodeClaims meanwhile"] = len({v["metadata"]["uid"] for _, _, v in world.claims.history if v["metadata"].get("labels", {}).get("karpenter.sh/nodepool") == rig.name})
    rig.patch("Cluster", rig.cluster, {"spec": {"paused": False}})
    rig.ready(3, 180)
    rig.stays("three", 30, lambda: (rig.replicas(), len(rig.machines(all=True))) == (3, 3))
    rig.same("Machines ever", len(rig.history()), 3)
    rig.at_rest()
    return rig


def held_template(world):
    "a creation held for 2 min by a missing template, launches timing out every 30 s"
    rig = Rig(world, "held-template", timeouts={"launch": "30s", "surplus": "20s"})
    rig.deployment(notes={MAX: "10"}, template="missing")
    rig.want(3)
    rig.stays("never more than what waits", 120, lambda: rig.replicas() <= 3 and not rig.machines())
    rig.facts["NodeClaims meanwhile"] = len({v["metadata"]["uid"] for _, _, v in world.claims.history if v["metadata"].get("labels", {}).get("karpenter.sh/nodepool") == rig.name})
    rig.template("missing")
    rig.ready(3, 600)
    rig.until("three", 120, lambda: (rig.replicas(), len(rig.machines(all=True))) == (3, 3))
    rig.stays("three", 30, lambda: (rig.replicas(), len(rig.machines())) == (3, 3))
    rig.facts["Machines ever"] = len(rig.history())
    rig.at_rest()
    return rig


def queued(world):
    "a burst that takes Cluster API longer than the launch timeout of 60 s is not given up while its Machines come"
    rig = Rig(world, "queued", timeouts={"launch": "60s", "surplus": "20s"}, env={"BATCH_IDLE_DURATION": "5s", "BATCH_MAX_DURATION": "60s"})
    rig.deployment(notes={MAX: "200"})
    rig.want(100)
    rig.ready(100, 600)
    mine = {v["metadata"]["uid"] for _, _, v in world.claims.history if v["metadata"].get("labels", {}).get("karpenter.sh/nodepool") == rig.name}
    rig.same("NodeClaims ever", len(mine), 100)
    rig.same("Machines ever", len(rig.history()), 100)
    rig.at_rest()
    return rig


def deletes_held(world):
    "five of ten deleted while Cluster API's controllers are stopped for 60 s: each call is repeated a dozen times"
    rig = Rig(world, "deletes-held")
    rig.deployment(notes={MAX: "20"})
    rig.want(10)
    rig.ready(10, 180)
    controllers = world.processes["capi-core"]
    controllers.send(19)
    victims = [c["metadata"]["name"] for c in rig.claims()][:5]
    doomed = {m["metadata"]["name"] for m in rig.machines() if annotations(m).get(CLAIM) in victims}
    for victim in victims:
        rig.give_up(victim)
    rig.until("the level is lowered", 120, lambda: rig.replicas() == 5)
    rig.stays("not lowered again", 60, lambda: rig.replicas() == 5 and len(rig.machines(all=True)) == 10)
    controllers.send(18)
    rig.gone(5, 180)
    rig.stays("five", 15, lambda: (rig.replicas(), len(rig.machines())) == (5, 5))
    gone = {m["name"] for m in rig.history().values() if m["goes"]}
    rig.same("exactly the right ones went", gone == doomed, True)
    rig.at_rest()
    return rig


def rollout_consolidated(world):
    "a rollout of eight while consolidation takes four of them"
    rig = Rig(world, "rollout-consolidated", disruption=OFTEN, drift="ClusterAPI")
    rig.deployment(notes={MAX: "30"})
    rig.template("slow", provisionSeconds=5)
    rig.want(8)
    rig.ready(8, 180)
    rig.patch("MachineDeployment", "m", {"spec": {"template": {"spec": {"infrastructureRef": {"name": "slow"}}}}})
    rig.until("a second MachineSet", 60, lambda: len(rig.here(world.sets)) == 2)
    rig.want(4)
    rig.until("the rollout is over", 600, lambda: not rig.in_set(newest=False))
    rig.until("four are left", 300, lambda: len(rig.machines(all=True)) == 4 and rig.running() == 4 and len(rig.claims()) == 4 and rig.initialized() == 4)
    rig.stays("four", 30, lambda: (rig.replicas(), len(rig.machines())) == (4, 4))
    rig.at_rest(lost=8)
    return rig


def _seconds(since, times):
    times = sorted(t - since for t in times)
    return f"{times[0]:.1f} to {times[-1]:.1f}" if times else "never"


def _phases(rig, world, began):
    """When each step was seen, first to last, in seconds since the beginning."""
    first = {}

    def note(what, key, when):
        first.setdefault(what, {}).setdefault(key, when)

    mine = lambda v: v["metadata"].get("namespace") == rig.namespace
    for when, what, value in world.deployments.history:
        if mine(value) and value["spec"].get("replicas"):
            note("scale", value["spec"]["replicas"], when)
    for when, what, value in world.machines.history:
        if mine(value) and what != "DELETED":
            note("Machine", value["metadata"]["uid"], when)
            if value["spec"].get("providerID"):
                note("providerID", value["metadata"]["uid"], when)
    for when, what, value in world.infra.history:
        if mine(value) and what != "DELETED":
            note("infra", value["metadata"]["uid"], when)
    for when, what, value in world.nodes.history:
        if value["spec"].get("providerID", "").startswith(f"fake://{rig.namespace}/") and is_true(value, "Ready"):
            note("Node ready", value["metadata"]["uid"], when)
    for when, what, value in world.claims.history:
        if value["metadata"].get("labels", {}).get("karpenter.sh/nodepool") == rig.name:
            note("NodeClaim", value["metadata"]["uid"], when)
            for kind in ("Launched", "Initialized"):
                if is_true(value, kind):
                    note("NodeClaim " + kind, value["metadata"]["uid"], when)
    order = ["NodeClaim", "scale", "Machine", "infra", "providerID", "NodeClaim Launched", "Node ready", "NodeClaim Initialized"]
    return {what: _seconds(began, first[what].values()) for what in order if what in first}


def up_and_down(world):
    "0 to many Machines to 0, the time split by phase (200, or --count)"
    count = world.arguments.count
    # How fast Cluster API makes Machines is not the point here: see `queued`.
    rig = Rig(world, "up-and-down", disruption=OFTEN, timeouts={"launch": "60m"})
    rig.deployment(notes={MAX: str(2 * count)})
    time.sleep(2)
    began = time.time()
    rig.want(count)
    rig.until("all nodes are ready", 900, lambda: rig.initialized() == count and rig.running() == count)
    up = time.time() - began
    phases = _phases(rig, world, began)
    rig.rules()
    rig.same("claimed", rig.claimed(), count)
    written = len(rig.writes())
    turned, began = stamp(), time.time()
    rig.api.delete("Deployment", rig.name, "default")
    rig.until("all are gone", 900, lambda: not rig.machines(all=True) and not rig.claims() and not rig.nodes())
    down = time.time() - began
    rig.same("replicas at the end", rig.replicas(), 0)
    rig.facts.update(phases, up=round(up, 1), down=round(down, 1), writes_up=written)
    rig.notes = [f"up {up:.1f} s, down {down:.1f} s, {written} writes up, {len(rig.writes()) - written} down; first to last seen: {phases}",
                 f"reads in all {dict(world.reads(rig.since))}, on the way down {dict(world.reads(turned))}"]
    return rig


def up_and_down_by_hand(world):
    "0 to as many Machines to 0 by kubectl scale, Cluster API alone"
    count = world.arguments.count
    rig = Rig(world, "up-and-down-by-hand", start=False)
    rig.deployment(notes={MAX: str(2 * count)})
    time.sleep(2)
    began = time.time()
    rig.hub.scale("MachineDeployment", "m", count, rig.namespace)
    ready = lambda: sum(1 for n in rig.nodes() if is_true(n, "Ready"))
    rig.until("all nodes are ready", 900, lambda: ready() == count and all("nodeRef" in m.get("status", {}) for m in rig.machines()))
    up = time.time() - began
    phases = _phases(rig, world, began)
    began = time.time()
    rig.hub.scale("MachineDeployment", "m", 0, rig.namespace)
    rig.until("all are gone", 900, lambda: not rig.machines(all=True) and not rig.nodes())
    down = time.time() - began
    rig.facts.update(phases, up=round(up, 1), down=round(down, 1))
    rig.notes = [f"up {up:.1f} s, down {down:.1f} s; first to last seen: {phases}"]
    return rig
