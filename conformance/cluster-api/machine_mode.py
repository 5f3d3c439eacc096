"""Machine mode in the scenarios that hold for both ways to launch: a Machine per NodeClaim, cloned from templates."""

import time

import rollouts
import safety
import topology
from rig import Rig
from world import MAX, PRICE, condition

ALONE = {"launchMode": "Machine"}


def _nothing_left(rig, count):
    """As many Machines, clones and NodeClaims, and no replica."""
    parts = (len(rig.machines(all=True)), len(rig.here(rig.world.infra)), len(rig.claims()))
    return parts == (count, count, count) and rig.replicas() == 0


def a11_machine(world):
    "slow machines of their own are waited for (25 min as 75 s)"
    rig = Rig(world, "a11-machine", timeouts={"launch": "180s"}, **ALONE)
    rig.template("metal", provisionSeconds=75, joinSeconds=6)
    rig.deployment(notes={MAX: "10"}, template="metal")
    rig.want(1)
    rig.until("it is told what is waited for", 60, lambda: any(r == "InfraProvisioning" for r, _ in rig.launched()))
    rig.stays("that reason", 30, lambda: all(reason == "InfraProvisioning" for reason, _ in rig.launched()))
    rig.ready(1, 120)
    rig.same("Machines", len(rig.history()), 1)
    rig.at_rest()
    return rig


def a12_machine(world):
    "a machine of its own that never comes is given up with its NodeClaim and clones (10 min as 30 s)"
    rig = Rig(world, "a12-machine", timeouts={"launch": "30s"}, **ALONE)
    rig.template("stuck", never=True)
    rig.deployment("m", {MAX: "10", PRICE: "0.1"}, template="stuck")
    rig.deployment("m2", {MAX: "10", PRICE: "0.2"})
    rig.want(1)
    rig.ready(1, 180)
    rig.until("nothing is left of the first", 60, lambda: _nothing_left(rig, 1))
    rig.stays("so it stays", 20, lambda: _nothing_left(rig, 1))
    rig.at_rest()
    return rig


def a13_machine(world):
    "a terminal failure of a machine of its own is answered at once"
    rig = Rig(world, "a13-machine", **ALONE)
    rig.template("full", fails={"seconds": 5, "reason": "InsufficientResources", "message": "no host has room"})
    rig.deployment("m", {MAX: "10", PRICE: "0.1"}, template="full")
    rig.deployment("m2", {MAX: "10", PRICE: "0.2"})
    rig.want(1)
    failed = lambda: any((condition(m, "InfrastructureReady") or {}).get("reason") == "InsufficientResources" for m in rig.machines(all=True))
    rig.until("it fails", 60, failed)
    first = rig.claims()[0]["metadata"]["uid"]
    there = lambda: first in {c["metadata"]["uid"] for c in rig.claims() if not c["metadata"].get("deletionTimestamp")}
    rig.at_most("seconds until it is answered", round(rig.until("it is answered", 20, lambda: not there())), 5)
    rig.ready(1, 60)
    rig.until("the failed one is removed", 60, lambda: _nothing_left(rig, 1))
    rig.at_rest()
    return rig


def a15_machine(world):
    "other clusters of the hub are neither read nor written by who makes machines of its own"
    return topology._among_others(world, "a15-machine", **ALONE)


def a16_machine(world):
    "a management cluster that is away costs no machine of its own (40 min as 4 min; needs --hub)"
    return safety._without_the_hub(world, "a16-machine", lambda rig: _nothing_left(rig, 7), **ALONE)


def a17_machine(world):
    "nothing is made or deleted for a paused cluster (10 min as 30 s each)"
    rig = Rig(world, "a17-machine", timeouts={"launch": "300s"}, **ALONE)
    rig.deployment(notes={MAX: "10"})
    rig.want(2)
    rig.ready(2)
    rig.patch("Cluster", rig.cluster, {"spec": {"paused": True}})
    time.sleep(2)
    writes = len(rig.writes())
    rig.want(3)
    rig.stays("nothing is made", 30, lambda: len(rig.machines(all=True)) == 2)
    rig.want(2)
    rig.until("the pod is gone", 60, lambda: len(rig.pods()) == 2)
    served = next(c["metadata"]["name"] for c in rig.claims() if c.get("status", {}).get("nodeName"))
    rig.give_up(served)
    rig.stays("nothing goes", 30, lambda: len(rig.machines()) == 2)
    rig.same("writes while paused", len(rig.writes()) - writes, 0)
    rig.patch("Cluster", rig.cluster, {"spec": {"paused": False}})
    rig.until("it goes", 120, lambda: served not in {c["metadata"]["name"] for c in rig.claims()})
    rig.until("every NodeClaim has its machine", 120, lambda: len(rig.machines(all=True)) == len(rig.claims()) == rig.initialized())
    rig.at_rest()
    return rig


def a18_machine(world):
    "a condemned machine of its own is replaced by its NodeClaim's end"
    rig = Rig(world, "a18-machine", **ALONE)
    rig.deployment(notes={MAX: "20"})
    rig.add({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineHealthCheck", "metadata": {"name": "m", "namespace": rig.namespace},
        "spec": {"clusterName": rig.cluster, "selector": {"matchLabels": {"cluster.x-k8s.io/cluster-name": rig.cluster}},
                 "checks": {"nodeStartupTimeoutSeconds": 600, "unhealthyNodeConditions": [{"type": "Broken", "status": "True", "timeoutSeconds": 1}]}},
    })
    rig.want(3)
    rig.ready(3)
    machine = rig.machines()[0]
    rollouts._condemn(rig, machine)
    name = machine["metadata"]["name"]
    going = lambda: next((c["metadata"].get("deletionTimestamp") for c in rig.claims() if c["metadata"]["name"] == name), "gone")
    rig.facts["seconds until its NodeClaim is deleted"] = round(rig.until("its NodeClaim is deleted", 60, going))
    rig.until("it has come right", 180, lambda: rig.initialized() == 3 and rig.running() == 3 and _nothing_left(rig, 3))
    rig.at_rest(lost=1)
    return rig


def a19_machine(world):
    "a hook of others is waited for before a machine of its own goes (15 min as 40 s)"
    rig = Rig(world, "a19-machine", **ALONE)
    rig.deployment(notes={MAX: "20"})
    rig.want(2)
    rig.ready(2)
    name = rig.machines()[0]["metadata"]["name"]
    hook = "pre-drain.delete.hook.machine.cluster.x-k8s.io/backup"
    rig.patch("Machine", name, {"metadata": {"annotations": {hook: ""}}})
    rig.give_up(name)
    rig.until("the Machine is on its way out", 120, lambda: name not in {m["metadata"]["name"] for m in rig.machines()})
    rig.stays("the hook holds it", 40, lambda: name in {m["metadata"]["name"] for m in rig.machines(all=True)})
    rig.same("the hook is told", any("backup" in text for text in rig.told("DeletionStalled")), True)
    rig.same("its NodeClaim is there", name in {c["metadata"]["name"] for c in rig.claims()}, True)
    rig.patch("Machine", name, {"metadata": {"annotations": {hook: None}}})
    rig.until("it is gone", 60, lambda: _nothing_left(rig, 1))
    rig.at_rest()
    return rig


def a20_machine(world):
    "bad annotations are named, and machines of their own are made from the others"
    return safety._with_bad_annotations(world, "a20-machine", **ALONE)


def a23_machine(world):
    "consolidation by price of machines of their own"
    return rollouts._consolidated(world, "a23-machine", {PRICE: "0.40"}, {PRICE: "0.15"}, **ALONE)
