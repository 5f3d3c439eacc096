"""Rollouts, health checks and hooks: what Cluster API does with Machines while they are in use."""

import time

from rig import CLAIM, Rig
from world import CAPACITY, MAX, PRICE, annotations

BUDGET_OF_ONE = {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "Never", "budgets": [{"nodes": "1"}]}


def _roll(rig, **change):
    rig.patch("MachineDeployment", "m", {"spec": {"template": {"spec": change}}})


def a8(world):
    "deletions during a rollout take the right machines, an old one and a new one"
    rig = Rig(world, "a8")
    rig.template("slow", provisionSeconds=15)
    rig.deployment(notes={MAX: "20"})
    rig.want(5)
    rig.ready(5)
    _roll(rig, infrastructureRef={"name": "slow"})
    rig.until("the rollout is under way", 60, lambda: len({m["metadata"]["labels"]["cluster.x-k8s.io/set-name"] for m in rig.machines()}) > 1)
    going = lambda m: m["metadata"].get("deletionTimestamp")
    old = [m for m in rig.in_set(newest=False) if not going(m) and CLAIM in annotations(m)]
    victim, others = old[-1], {m["metadata"]["name"] for m in old[:-1]}
    rig.give_up(annotations(victim)[CLAIM])
    name = victim["metadata"]["name"]
    rig.until("it is on its way out", 60, lambda: name not in {m["metadata"]["name"] for m in rig.machines()})
    left = {m["metadata"]["name"] for m in rig.in_set(newest=False) if not going(m)}
    rig.at_most("others that Cluster API took meanwhile", len(others - left), 1)
    # And one of the new ones, which the rollout itself never takes.
    used = lambda: {p["spec"].get("nodeName") for p in rig.pods()}
    served = lambda: [m for m in rig.in_set(newest=True) if not going(m) and CLAIM in annotations(m) and m.get("status", {}).get("nodeRef", {}).get("name") in used()]
    rig.until("a new one is in use", 180, served)
    rig.same("the rollout goes on", bool(rig.in_set(newest=False)), True)
    fresh = served()[0]["metadata"]["name"]
    rig.give_up(annotations(served()[0])[CLAIM])
    rig.until("the new one is on its way out", 60, lambda: fresh not in {m["metadata"]["name"] for m in rig.machines()})
    rig.until("the rollout is over", 300, lambda: not rig.in_set(newest=False))
    rig.until("three are left", 180, lambda: len(rig.machines(all=True)) == 3 and rig.initialized() == 3 and rig.running() == 3)
    rig.stays("three", 30, lambda: len(rig.machines()) == 3)
    rig.same("replicas", rig.replicas(), 3)
    rig.at_rest(lost=5)  # the rollout itself takes the old ones
    return rig


def a9(world):
    "machines that Cluster API replaced get NodeClaims"
    rig = Rig(world, "a9", drift="ClusterAPI")
    rig.deployment(notes={MAX: "20"})
    rig.want(4)
    rig.ready(4)
    before = {c["metadata"]["uid"] for c in rig.claims()}
    scales = len(rig.writes("/scale"))
    _roll(rig, version="v1.36.2")
    rig.until("a second MachineSet", 60, lambda: len(rig.here(world.sets)) == 2)
    rig.until("all are replaced", 300, lambda: not rig.in_set(newest=False) and rig.initialized() == 4 and len(rig.claims()) == 4 and rig.running() == 4)
    rig.stays("four", 30, lambda: rig.replicas() == 4 and len(rig.machines()) == 4)
    rig.same("old NodeClaims", sum(1 for c in rig.claims() if c["metadata"]["uid"] in before), 0)
    rig.same("further scale writes", len(rig.writes("/scale")) - scales, 0)
    rig.at_rest(lost=4)
    return rig


def a10(world):
    "nodes of an OnDelete deployment are replaced one at a time, by drift"
    rig = Rig(world, "a10", disruption=BUDGET_OF_ONE, drift="Karpenter")
    rig.deployment(notes={MAX: "20"}, rollout={"strategy": {"type": "OnDelete"}})
    rig.want(4)
    rig.ready(4)
    most = [0]
    world.machines.listeners.append(lambda what, value: most.__setitem__(0, max(most[0], len(rig.machines(all=True)))))
    _roll(rig, version="v1.36.2")
    rig.until("a second MachineSet", 60, lambda: len(rig.here(world.sets)) == 2)
    rig.until("all are replaced", 600, lambda: not rig.in_set(newest=False) and rig.initialized() == 4 and rig.running() == 4)
    world.machines.listeners.clear()
    rig.at_most("Machines at once", most[0], 5)
    # An OnDelete deployment fills up what was deleted; nobody waits for that one any more.
    rig.until("the surplus is gone", 120, lambda: rig.replicas() == 4 and len(rig.machines(all=True)) == 4)
    rig.stays("four", 20, lambda: len(rig.in_set(newest=True)) == 4)
    rig.at_rest()
    return rig


def _condemn(rig, machine):
    """A Node condition that a real MachineHealthCheck takes for the end."""
    node = machine["status"]["nodeRef"]["name"]
    conditions = rig.api.get("Node", node)["status"]["conditions"]
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    broken = {"type": "Broken", "status": "True", "reason": "Broken", "message": "", "lastHeartbeatTime": now, "lastTransitionTime": now}
    rig.api.patch("Node", node, {"status": {"conditions": [*conditions, broken]}}, sub="status")


def _health_check(rig):
    rig.add({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineHealthCheck", "metadata": {"name": "m", "namespace": rig.namespace},
        "spec": {"clusterName": rig.cluster, "selector": {"matchLabels": {"md": "m"}},
                 "checks": {"nodeStartupTimeoutSeconds": 600, "unhealthyNodeConditions": [{"type": "Broken", "status": "True", "timeoutSeconds": 1}]}},
    })


def a18_capi(world):
    "a condemned machine is replaced by Cluster API"
    rig = Rig(world, "a18-capi", remediation="ClusterAPI")
    rig.deployment(notes={MAX: "20"})
    _health_check(rig)
    rig.want(3)
    rig.ready(3)
    machine = rig.machines()[0]
    claim = annotations(machine)[CLAIM]
    _condemn(rig, machine)
    rig.until("its NodeClaim ends", 120, lambda: claim not in {c["metadata"]["name"] for c in rig.claims()})
    rig.until("it has come right", 120, lambda: rig.initialized() == 3 and len(rig.machines(all=True)) == 3 and rig.running() == 3)
    rig.stays("three", 30, lambda: rig.replicas() == 3)
    rig.same("levels", rig.levels(), [0, 3])
    rig.at_rest(lost=1)
    return rig


def a18_karpenter(world):
    "a condemned machine is replaced by Karpenter"
    rig = Rig(world, "a18-karpenter", remediation="Karpenter")
    rig.deployment(notes={MAX: "20"})
    _health_check(rig)
    rig.want(3)
    rig.ready(3)
    machine = rig.machines()[0]
    claim = annotations(machine)[CLAIM]
    _condemn(rig, machine)
    going = lambda: next((c["metadata"].get("deletionTimestamp") for c in rig.claims() if c["metadata"]["name"] == claim), "gone")
    took = rig.until("its NodeClaim is deleted", 30, going)
    rig.at_most("seconds until then", round(took), 12)
    rig.until("it has come right", 180, lambda: rig.initialized() == 3 and len(rig.machines(all=True)) == 3 and rig.running() == 3)
    rig.stays("three", 30, lambda: rig.replicas() == 3)
    rig.at_rest(lost=1)
    return rig


def a19(world):
    "hooks of others and PodDisruptionBudgets are waited for (15 min as 40 s)"
    rig = Rig(world, "a19", pool={"terminationGracePeriod": "20m"})
    rig.deployment(notes={MAX: "20"})
    rig.want(2)
    rig.ready(2)
    rig.api.create({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "a19", "namespace": "default"},
                    "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "a19"}}}})
    machine = rig.machines()[0]
    name, claim = machine["metadata"]["name"], annotations(machine)[CLAIM]
    hook = "pre-drain.delete.hook.machine.cluster.x-k8s.io/backup"
    rig.patch("Machine", name, {"metadata": {"annotations": {hook: ""}}})
    try:
        time.sleep(2)
        rig.api.delete("NodeClaim", claim)
        rig.stays("the budget holds the drain", 40, lambda: len(rig.machines()) >= 2 and rig.running() >= 2)
        rig.same("the drain that waits is told, and by which budget", any("budget a19 " in text for text in rig.told("FailedDraining")), True)
    finally:
        rig.api.delete("PodDisruptionBudget", "a19", "default")
    rig.until("the Machine is on its way out", 120, lambda: name not in {m["metadata"]["name"] for m in rig.machines()})
    rig.stays("the hook holds it", 40, lambda: name in {m["metadata"]["name"] for m in rig.machines(all=True)})
    rig.same("the hook is told", any("backup" in text for text in rig.told("DeletionStalled")), True)
    out = next(m for m in rig.machines(all=True) if m["metadata"]["name"] == name)
    rig.same("Cluster API does not drain again", "machine.cluster.x-k8s.io/exclude-node-draining" in annotations(out), True)
    rig.same("its NodeClaim is there", claim in {c["metadata"]["name"] for c in rig.claims()}, True)
    rig.patch("Machine", name, {"metadata": {"annotations": {hook: None}}})
    rig.until("it is gone", 60, lambda: name not in {m["metadata"]["name"] for m in rig.machines(all=True)})
    rig.until("the pods run", 120, lambda: rig.running() == 2 and rig.initialized() == 2 and len(rig.claims()) == 2)
    rig.at_rest()
    return rig


def a23(world):
    "consolidation by price"
    return _consolidated(world, "a23", {PRICE: "0.40"}, {PRICE: "0.15"})


def a23_no_prices(world):
    "consolidation where nobody tells prices: the model of cores and memory gives the same order"
    return _consolidated(world, "a23-no-prices", {}, {})


def _consolidated(world, name, dear, cheap, **spec):
    often = {"consolidationPolicy": "WhenEmptyOrUnderutilized", "consolidateAfter": "5s", "budgets": [{"nodes": "100%"}]}
    rig = Rig(world, name, disruption=often, **spec)
    # Without a zone nothing but empty nodes is consolidated.
    zone = "topology.kubernetes.io/zone"
    labels = {CAPACITY + "labels": f"{zone}=zone-a"}
    rig.template("big", capacity={"cpu": "8", "memory": "32Gi", "pods": "110"}, nodeLabels={zone: "zone-a"})
    rig.template("small", nodeLabels={zone: "zone-a"})
    rig.deployment("m", {MAX: "10", **dear, **labels}, template="big", cpu="8", memory="32Gi")
    rig.deployment("m2", {MAX: "10", **cheap, **labels}, template="small")
    rig.want(3, cpu="7")
    rig.ready(3)
    made = lambda: (rig.made_from("m"), rig.made_from("m2"))
    rig.same("big ones first", made(), (3, 0))
    # The same pods, smaller.
    rig.api.delete("Deployment", rig.name, "default")
    rig.until("the pods are gone", 60, lambda: not rig.pods())
    rig.want(3, cpu="1")
    rig.until("the cheapest set", 300, lambda: made() == (0, 1) and rig.running() == 3 and len(rig.machines(all=True)) == 1)
    rig.patch("MachineDeployment", "m2", {"metadata": {"annotations": {PRICE: "0.16"}}})
    before = {m["metadata"]["uid"] for m in rig.machines()}
    rig.stays("a price disrupts nothing", 30, lambda: {m["metadata"]["uid"] for m in rig.machines(all=True)} == before)
    rig.at_rest()
    return rig


def own_hook(world):
    "a Machine that somebody deletes waits until Karpenter has drained its node, by its own rules"
    rig = Rig(world, "own-hook", timeouts={"hook": "10m"})
    rig.deployment(notes={MAX: "20"})
    rig.want(2)
    rig.ready(2)
    rig.api.create({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "own-hook", "namespace": "default"},
                    "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "own-hook"}}}})
    machine = rig.machines()[0]
    name, claim = machine["metadata"]["name"], annotations(machine)[CLAIM]
    try:
        rig.hub.delete("Machine", name, rig.namespace)
        going = lambda: any(c["metadata"]["name"] == claim and c["metadata"].get("deletionTimestamp") for c in rig.claims())
        rig.until("its NodeClaim is deleted", 60, going)
        rig.stays("nobody drains past the budget", 40, lambda: rig.running() >= 2 and name in {m["metadata"]["name"] for m in rig.machines(all=True)})
    finally:
        rig.api.delete("PodDisruptionBudget", "own-hook", "default")
    rig.until("it is gone", 120, lambda: name not in {m["metadata"]["name"] for m in rig.machines(all=True)})
    rig.until("the pods run", 120, lambda: rig.running() == 2 and rig.initialized() == len(rig.claims()) == len(rig.machines(all=True)) == 2)
    rig.stays("two", 25, lambda: (rig.replicas(), len(rig.machines(all=True))) == (2, 2))
    rig.at_rest(lost=1)
    return rig


def overdue(world):
    "a node whose terminationGracePeriod is over goes, though a PodDisruptionBudget never lets its pods go (20 s)"
    rig = Rig(world, "overdue", pool={"terminationGracePeriod": "20s"})
    rig.deployment(notes={MAX: "20"})
    rig.want(2)
    rig.ready(2)
    rig.api.create({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "overdue", "namespace": "default"},
                    "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "overdue"}}}})
    machine = rig.machines()[0]
    name, claim = machine["metadata"]["name"], annotations(machine)[CLAIM]
    try:
        time.sleep(2)
        rig.api.delete("NodeClaim", claim)
        rig.stays("the budget holds the drain until then", 12, lambda: len(rig.machines()) >= 2 and rig.running() >= 2)
        rig.until("the Machine is gone", 40, lambda: name not in {m["metadata"]["name"] for m in rig.machines(all=True)})
        rig.until("its NodeClaim is gone", 20, lambda: claim not in {c["metadata"]["name"] for c in rig.claims()})
        rig.until("the pods run elsewhere", 120, lambda: rig.running() == 2 and rig.initialized() == len(rig.claims()) == len(rig.machines(all=True)) == 2)
    finally:
        rig.api.delete("PodDisruptionBudget", "overdue", "default")
    rig.stays("two", 25, lambda: (rig.replicas(), len(rig.machines(all=True))) == (2, 2))
    rig.at_rest()
    return rig
