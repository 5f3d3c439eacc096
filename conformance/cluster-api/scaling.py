"""Launching by scaling MachineDeployments. Each outcome is that of the test of the same number in the provider's tests/it."""

from rig import Rig
from world import GROUP, MAX, PRICE, annotations, condition, is_true


def a1(world):
    "scale from zero"
    rig = Rig(world, "a1")
    rig.deployment(notes={MAX: "10"})
    rig.want(1)
    rig.ready(1)
    rig.stays("one replica", 10, lambda: rig.replicas() == 1)
    rig.same("scale writes", len(rig.writes("/scale")), 1)
    rig.same("claimed", rig.claimed(), 1)
    rig.at_rest()
    rig.want(0)
    rig.api.delete("NodeClaim", rig.claims()[0]["metadata"]["name"])
    rig.gone()
    rig.same("replicas at the end", rig.replicas(), 0)
    return rig


def a2(world, count=50):
    "a burst is one write"
    # On a busy machine the scheduler takes its time to say that pods do not fit; they are to come together.
    rig = Rig(world, "a2", env={"BATCH_IDLE_DURATION": "5s", "BATCH_MAX_DURATION": "60s"})
    rig.deployment(notes={MAX: "100"})
    rig.want(count)
    rig.ready(count, 300)
    rig.stays("the level", 10, lambda: rig.replicas() == count)
    # A window of launches is open for a second at most: where NodeClaims take longer to be made, there are more of them.
    made = {}
    for when, _, value in world.claims.history:
        if GROUP + "target" in annotations(value):
            made.setdefault(value["metadata"]["uid"], when)
    seconds = max(made.values()) - min(made.values())
    rig.facts["seconds in which NodeClaims got their targets"] = round(seconds, 1)
    rig.at_most("scale writes", len(rig.writes("/scale")), 2 + int(seconds))
    rig.same("claimed", rig.claimed(), count)
    rig.at_most("writes", len(rig.writes()), 3 * count)
    rig.at_rest()
    return rig


def a3(world):
    "a greatest size holds under a burst"
    rig = Rig(world, "a3")
    rig.deployment("m", {MAX: "3", PRICE: "0.1"})
    rig.deployment("m2", {MAX: "10", PRICE: "0.2"})
    rig.want(7)
    rig.ready(7, 180)
    rig.stays("both levels", 10, lambda: (rig.replicas("m"), rig.replicas("m2")) == (3, 4))
    rig.same("greatest m", max(rig.levels("m")), 3)
    rig.at_rest()
    return rig


def a4(world):
    "a held creation does not run away (30 min as 90 s, launches timing out every 25 s)"
    rig = Rig(world, "a4", timeouts={"launch": "25s"})
    rig.deployment(notes={MAX: "10"})
    rig.patch("FakeControlPlane", rig.cluster, {"spec": {"version": "v1.37.0", "reported": "v1.36.3"}})
    rig.want(1)
    rig.until("the hold is told", 120, lambda: any(reason == "ControlPlaneUpgrading" for reason, _ in rig.launched()))
    rig.stays("at most one replica", 90, lambda: rig.replicas() <= 1 and not rig.machines())
    rig.patch("FakeControlPlane", rig.cluster, {"spec": {"version": "v1.36.3", "reported": None}})
    rig.ready(1, 180)
    rig.stays("one Machine", 20, lambda: (rig.replicas(), len(rig.machines(all=True))) == (1, 1))
    rig.at_rest()
    return rig


def a6(world):
    "two windows do not share machines"
    rig = Rig(world, "a6")
    rig.template("slow", provisionSeconds=8)
    rig.deployment(notes={MAX: "20"}, template="slow")
    rig.want(4)
    rig.until("four are asked for", 60, lambda: rig.replicas() == 4)
    rig.want(8)
    rig.ready(8, 180)
    rig.stays("eight", 5, lambda: rig.replicas() == 8)
    rig.at_rest()
    return rig


def a7(world):
    "a delete that is repeated lowers the level once (controllers stopped for 2 min as 60 s)"
    rig = Rig(world, "a7")
    rig.deployment(notes={MAX: "10"})
    rig.want(3)
    rig.ready(3)
    controllers = world.processes["capi-core"]
    controllers.send(19)  # SIGSTOP; the webhooks are another process
    victim = rig.claims()[0]["metadata"]["name"]
    rig.give_up(victim)
    rig.until("the level is lowered", 60, lambda: rig.replicas() == 2)
    rig.stays("lowered once", 60, lambda: rig.replicas() == 2 and len(rig.machines(all=True)) == 3)
    controllers.send(18)  # SIGCONT
    rig.gone(2)
    rig.stays("two", 10, lambda: (rig.replicas(), len(rig.machines(all=True))) == (2, 2))
    rig.same("left", sorted(c["metadata"]["name"] != victim for c in rig.claims()), [True, True])
    rig.at_rest()
    return rig


def a11(world):
    "slow machines are waited for (25 min as 75 s)"
    rig = Rig(world, "a11", timeouts={"launch": "180s"})
    rig.template("metal", provisionSeconds=75, joinSeconds=6)
    rig.deployment(notes={MAX: "10"}, template="metal")
    rig.want(1)
    rig.until("it is told what is waited for", 60, lambda: any(r == "InfraProvisioning" for r, _ in rig.launched()))
    rig.stays("that reason", 30, lambda: all(reason == "InfraProvisioning" for reason, _ in rig.launched()))
    rig.ready(1, 120)
    rig.same("Machines", len(rig.history()), 1)
    rig.same("levels", rig.levels(), [0, 1])
    rig.at_rest()
    return rig


def a12(world):
    "a machine that never comes is given up with its NodeClaim (10 min as 30 s)"
    rig = Rig(world, "a12", timeouts={"launch": "30s"})
    rig.template("stuck", never=True)
    rig.deployment("m", {MAX: "10", PRICE: "0.1"}, template="stuck", domain="rack-1")
    rig.deployment("m2", {MAX: "10", PRICE: "0.2"})
    rig.want(1)
    rig.ready(1, 180)
    rig.until("nothing is left of the first", 60, lambda: (rig.replicas("m"), rig.replicas("m2")) == (0, 1) and len(rig.machines(all=True)) == 1)
    rig.stays("so it stays", 20, lambda: (rig.replicas("m"), rig.replicas("m2")) == (0, 1))
    rig.at_rest()
    return rig


def a13(world):
    "a terminal failure is answered at once"
    rig = Rig(world, "a13")
    rig.template("full", fails={"seconds": 5, "reason": "InsufficientResources", "message": "no host has room"})
    rig.deployment("m", {MAX: "10", PRICE: "0.1"}, template="full", domain="rack-1")
    rig.deployment("m2", {MAX: "10", PRICE: "0.2"})
    rig.want(1)
    failed = lambda: any((condition(m, "InfrastructureReady") or {}).get("reason") == "InsufficientResources" for m in rig.machines(all=True))
    rig.until("it fails", 60, failed)
    first = rig.claims()[0]["metadata"]["uid"]
    there = lambda: first in {c["metadata"]["uid"] for c in rig.claims() if not c["metadata"].get("deletionTimestamp")}
    rig.at_most("seconds until it is answered", round(rig.until("it is answered", 20, lambda: not there())), 5)
    rig.same("the reason is told", any("no host has room" in text for text in rig.told("InsufficientCapacityError")), True)
    rig.ready(1, 60)
    rig.until("the failed one is removed", 60, lambda: len(rig.machines(all=True)) == 1)
    rig.stays("the levels", 20, lambda: (rig.replicas("m"), rig.replicas("m2")) == (0, 1))
    rig.at_rest()
    return rig


def never_joins(world):
    "a machine that never becomes a node is given up (15 min as 30 s), and another MachineDeployment serves"
    rig = Rig(world, "never-joins", timeouts={"launch": "60s", "registration": "30s"})
    rig.template("mute", neverJoins=True)
    rig.deployment("m", {MAX: "10", PRICE: "0.1"}, template="mute")
    rig.deployment("m2", {MAX: "10", PRICE: "0.2"})
    rig.want(1)
    rig.until("it is launched", 60, lambda: any(is_true(c, "Launched") for c in rig.claims()))
    first = rig.claims()[0]["metadata"]["uid"]
    there = lambda: first in {c["metadata"]["uid"] for c in rig.claims() if not c["metadata"].get("deletionTimestamp")}
    rig.facts["seconds until it is given up"] = round(rig.until("it is given up", 120, lambda: not there()))
    rig.until("nothing is left of it", 60, lambda: first not in {c["metadata"]["uid"] for c in rig.claims()})
    rig.ready(1, 240)
    rig.until("nothing else is left", 120, lambda: len(rig.machines(all=True)) == len(rig.claims()) == 1)
    rig.facts["Machines ever"] = len(rig.history())
    rig.at_rest()
    return rig


def a14(world):
    "machines that were there before are left alone"
    rig = Rig(world, "a14", start=False)
    rig.deployment(notes={MAX: "10"}, replicas=3)
    rig.until("three nodes by hand", 60, lambda: len(rig.nodes()) == 3 and all("nodeRef" in m.get("status", {}) for m in rig.machines()))
    before = {m["metadata"]["name"] for m in rig.machines()}
    rig.start()
    rig.want(2)
    rig.ready(2)
    rig.same("with ours", rig.replicas(), 5)
    rig.want(0)
    for claim in rig.claims():
        rig.api.delete("NodeClaim", claim["metadata"]["name"])
    rig.until("ours are gone", 120, lambda: not rig.claims() and rig.replicas() == 3 and len(rig.machines(all=True)) == 3)
    rig.stays("the three", 30, lambda: rig.replicas() == 3)
    levels = rig.levels()
    rig.same("levels", (levels[0], max(levels), levels[-1]), (3, 5, 3))
    rig.same("the same ones", {m["metadata"]["name"] for m in rig.machines()} == before, True)
    marked = [m for m in rig.machines() if any(k.startswith("karpenter.cluster") or k.endswith("delete-machine") for k in m["metadata"].get("annotations", {}))]
    rig.same("marked or claimed", len(marked), 0)
    rig.at_rest(foreign=3)
    return rig
