"""Crashes, outages, pauses and bad input."""

import os
import signal
import threading
import time

from rig import CLAIM, Rig
from world import CAPACITY, GROUP, MAX, PRICE, annotations, is_true, stamp


def a5(world):
    "a crash at any step loses and leaks nothing"
    rig = Rig(world, "a5")
    rig.template("slow", provisionSeconds=2)
    rig.deployment(notes={MAX: "20"}, template="slow")
    old = lambda: sum(1 for c in rig.claims() if c["status"].get("providerID"))
    for step, (what, reached) in enumerate([
        ("a target is written", lambda n: any(GROUP + "target" in annotations(c) and not c.get("status", {}).get("providerID") for c in rig.claims())),
        ("the level is written", lambda n: rig.replicas() > n),
        ("a Machine is claimed", lambda n: rig.claimed() > n),
        ("a NodeClaim has its id", lambda n: sum(1 for c in rig.claims() if c.get("status", {}).get("providerID")) > n),
    ]):
        before = 3 * step
        rig.want(before + 3)
        rig.until(what, 60, lambda: reached(before))
        rig.kill()
        rig.facts[f"killed when {what}"] = f"replicas {rig.replicas()}, claimed {rig.claimed()}"
        time.sleep(1)
        rig.start()
        rig.ready(before + 3, 180)
    rig.stays("twelve", 25, lambda: (rig.replicas(), rig.claimed(), len(rig.machines(all=True))) == (12, 12, 12))
    rig.same("Machines ever", len(rig.history()), 12)
    rig.at_rest()
    return rig


def _process(directory, name):
    for line in open(f"{directory}/pids"):
        if line.split()[0] == name:
            return int(line.split()[1])
    raise KeyError(name)


def a16(world):
    "a management cluster that is away costs no node (40 min as 4 min; needs --hub)"
    return _without_the_hub(world, "a16", lambda rig: (rig.replicas(), len(rig.machines(all=True))) == (7, 7))


def _without_the_hub(world, name, is_all, **spec):
    rig = Rig(world, name, **spec)
    rig.deployment(notes={MAX: "30"})
    rig.want(5)
    rig.ready(5)
    nodes, claims = {n["metadata"]["uid"] for n in rig.nodes()}, {c["metadata"]["uid"] for c in rig.claims()}
    server, kubelets = _process(world.hub_dir, "kube-apiserver"), _process(world.dir, "kwok")
    os.kill(server, signal.SIGSTOP)
    try:
        rig.want(7)
        there = lambda: nodes <= {n["metadata"]["uid"] for n in rig.nodes()} and claims <= {c["metadata"]["uid"] for c in rig.claims() if not c["metadata"].get("deletionTimestamp")}
        rig.stays("all nodes", 60, there)
        # Every node goes NotReady for a while.
        os.kill(kubelets, signal.SIGSTOP)
        try:
            rig.until("nodes are not ready", 90, lambda: not any(is_true(n, "Ready") for n in rig.nodes()))
            rig.stays("all nodes, none of them ready", 30, there)
        finally:
            os.kill(kubelets, signal.SIGCONT)
        rig.stays("all nodes", 90, there)
        rig.same("ManagementClusterReady", rig.class_condition("ManagementClusterReady").get("status"), "False")
    finally:
        os.kill(server, signal.SIGCONT)
    back = stamp()
    rig.facts["seconds until all are served afterwards"] = round(rig.ready(7, 240))
    rig.stays("seven", 25, lambda: is_all(rig))
    rig.until("the NodeClass is ready again", 120, lambda: rig.class_condition("ManagementClusterReady").get("status") == "True")
    rig.same("Machines ever", len(rig.history()), 7)
    lists = {what: count for what, count in world.reads(back).items() if what.startswith("list ")}
    rig.facts["lists after it is back"] = lists
    # Of these only watches make lists. Machines and MachineSets are listed by looks, too, among them those that the stopped server had yet to hear.
    for what in ("list machinedeployments", "list clusters"):
        rig.at_most(f"{what} after it is back", lists.get(what, 0), 1)
    rig.at_rest()
    return rig


def a17(world):
    "a paused cluster is not written to (10 min as 40 s)"
    rig = Rig(world, "a17", timeouts={"launch": "300s"})
    rig.template("slow", provisionSeconds=20)
    rig.deployment(notes={MAX: "10"}, template="slow")
    rig.want(2)
    rig.until("two Machines", 60, lambda: rig.claimed() == 2)
    rig.patch("Cluster", rig.cluster, {"spec": {"paused": True}})
    time.sleep(2)
    writes = len(rig.writes())
    rig.want(3)
    rig.stays("nothing is asked for", 40, lambda: rig.replicas() == 2)
    rig.same("writes while paused", len(rig.writes()) - writes, 0)
    rig.patch("Cluster", rig.cluster, {"spec": {"paused": False}})
    rig.ready(3, 180)
    rig.stays("three", 20, lambda: rig.replicas() == 3 and len(rig.machines(all=True)) == 3)
    # A deletion waits for the end of a pause.
    rig.patch("Cluster", rig.cluster, {"spec": {"paused": True}})
    time.sleep(2)
    writes = len(rig.writes())
    rig.give_up(rig.claims()[0]["metadata"]["name"])
    rig.stays("nothing goes", 30, lambda: rig.replicas() == 3 and len(rig.machines()) == 3)
    rig.same("writes for a deletion while paused", len(rig.writes()) - writes, 0)
    rig.patch("Cluster", rig.cluster, {"spec": {"paused": False}})
    rig.gone(2)
    rig.want(3)
    rig.ready(3, 180)
    # The MachineDeployment alone: what goes may go, nothing new comes.
    rig.patch("MachineDeployment", "m", {"spec": {"paused": True}})
    time.sleep(1)
    rig.give_up(rig.claims()[0]["metadata"]["name"])
    rig.gone(2)
    rig.want(3)
    rig.stays("no launch", 20, lambda: rig.replicas() == 2)
    rig.patch("MachineDeployment", "m", {"spec": {"paused": False}})
    rig.ready(3, 180)
    rig.at_rest()
    return rig


def a20(world):
    "bad annotations are named and the others work"
    return _with_bad_annotations(world, "a20")


def _with_bad_annotations(world, name, **spec):
    rig = Rig(world, name, **spec)
    rig.deployment("m", {CAPACITY + "cpu": "sixteen"})
    rig.deployment("m2", {CAPACITY + "memory": None})
    rig.deployment("m3", {PRICE: "9"})
    rig.want(1)
    rig.ready(1)
    rig.same("the good one serves", rig.made_from("m3"), 1)
    message = rig.class_condition("InstanceTypesResolved").get("message", "")
    for text in [f"{name}/m", 'cpu: "sixteen"', "m2", "memory: is missing"]:
        rig.same(f"named: {text}", text in message, True)
    rig.patch("MachineDeployment", "m", {"metadata": {"annotations": {CAPACITY + "cpu": "4"}}})
    time.sleep(2)
    rig.want(2)
    rig.until("the mended one serves", 120, lambda: rig.made_from("m") == 1)
    rig.ready(2)
    rig.at_rest()
    return rig


def a25_leaders(world):
    "two leaders for 15 s launch no node twice"
    rig = Rig(world, "a25-leaders")
    rig.template("slow", provisionSeconds=6)
    rig.deployment(notes={MAX: "20"}, template="slow")
    rig.want(6)
    rig.until("the NodeClaims are there", 60, lambda: len(rig.claims()) == 6)
    first = rig.karpenter
    rig.start()
    time.sleep(15)
    rig.kill(first)
    rig.ready(6, 180)
    rig.stays("six", 30, lambda: (rig.replicas(), rig.claimed(), len(rig.machines(all=True))) == (6, 6, 6))
    rig.at_rest()
    return rig


def _bound(rig, name, machine):
    """A NodeClaim as the Go provider left it: launched, and bound to a Machine."""
    key = f'{rig.namespace}/{machine["metadata"]["name"]}'
    rig.api.create({
        "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
        "metadata": {"name": name, "finalizers": ["karpenter.sh/termination"], "labels": {"karpenter.sh/nodepool": rig.name},
                     "annotations": {"cluster.x-k8s.io/machine": key}},
        "spec": {"requirements": [], "resources": {"requests": {"cpu": "3"}}, "expireAfter": "Never",
                 "nodeClassRef": {"group": "karpenter.cluster.x-k8s.io", "kind": "ClusterAPINodeClass", "name": rig.name}},
    })
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    status = {"providerID": machine["spec"]["providerID"],
              "conditions": [{"type": "Launched", "status": "True", "reason": "Launched", "message": "", "lastTransitionTime": now}]}
    rig.api.patch("NodeClaim", name, {"status": status}, sub="status")


def a25_go(world):
    "what the Go provider bound keeps its machine; of two on one, the older"
    rig = Rig(world, "a25-go", start=False)
    rig.deployment(notes={MAX: "10"}, replicas=2)
    rig.until("two nodes by hand", 60, lambda: len(rig.nodes()) == 2 and all("nodeRef" in m.get("status", {}) for m in rig.machines()))
    first, second = rig.machines()
    for name, machine in (("g1", first), ("g2", second), ("g3", first)):
        _bound(rig, name, machine)
        time.sleep(1.2)
    rig.start()
    rig.until("they are claimed", 60, lambda: rig.claimed() == 2)
    rig.stays("two", 10, lambda: rig.replicas() == 2 and len(rig.machines()) == 2)
    owners = sorted(annotations(m)[GROUP + "nodeclaim"] for m in rig.machines())
    rig.same("owners", owners, ["g1", "g2"])
    rig.until("the younger ends", 60, lambda: len(rig.claims()) == 2)
    rig.same("it is told", any(first["metadata"]["name"] in text for text in rig.told("DuplicateMachine")), True)
    rig.same("Nodes", len(rig.nodes()), 2)
    rig.stays("without taking the Machine along", 20, lambda: rig.replicas() == 2 and len(rig.machines()) == 2)
    # Cluster API's own annotation on the Node holds the bare name.
    for node in rig.nodes():
        rig.same("Node annotation", annotations(node).get("cluster.x-k8s.io/machine") == node["metadata"]["name"], True)
    rig.at_rest()
    return rig


def a25_gitops(world):
    "replicas that somebody else sets back are put right, and no claimed machine goes but those Cluster API took (3 min as 20 s)"
    rig = Rig(world, "a25-gitops")
    rig.deployment(notes={MAX: "10"})
    rig.want(4)
    rig.ready(4)
    stop, resets = threading.Event(), []

    def reset():
        while not stop.wait(20):
            resets.append(time.time())
            path = f"/apis/cluster.x-k8s.io/v1beta2/namespaces/{rig.namespace}/machinedeployments/m?fieldManager=gitops"
            rig.hub.request("PATCH", path, {"spec": {"replicas": 2}}, "application/merge-patch+json")

    thread = threading.Thread(target=reset, daemon=True)
    thread.start()
    time.sleep(65)
    stop.set()
    thread.join()
    rig.until("all is served again", 240, lambda: rig.initialized() == 4 and rig.running() == 4 and len(rig.machines(all=True)) == 4 and len(rig.claims()) == 4)
    rig.stays("four", 25, lambda: rig.replicas() == 4)
    rig.facts["levels"] = rig.levels()
    rig.same("who it was is told", any("gitops" in text for text in rig.told("ReplicasChangedByAnother")), True)
    # From four to two, each time.
    rig.at_rest(lost=2 * len(resets))
    return rig


def by_hand_deleted(world):
    "a Machine, a Node and a whole MachineDeployment deleted by hand"
    rig = Rig(world, "by-hand-deleted")
    rig.deployment("m", {MAX: "10", PRICE: "0.1"})
    rig.deployment("m2", {MAX: "10", PRICE: "0.2"})
    rig.want(3)
    rig.ready(3)
    settled = lambda m, m2: (rig.replicas("m"), rig.replicas("m2")) == (m, m2) and rig.initialized() == len(rig.claims()) == 3 and \
        len(rig.machines(all=True)) == 3 and rig.running() == 3
    for kind, api, namespace in (("Machine", rig.hub, rig.namespace), ("Node", rig.api, None)):
        machine = rig.machines()[0]
        name, claim = machine["metadata"]["name"], annotations(machine)[CLAIM]
        api.delete(kind, name if kind == "Machine" else machine["status"]["nodeRef"]["name"], namespace)
        rig.until(f"the NodeClaim of the {kind} ends", 120, lambda: claim not in {c["metadata"]["name"] for c in rig.claims()})
        rig.facts[f"seconds until all is well after a {kind}"] = round(rig.until("three again", 180, lambda: settled(3, 0)))
        rig.same(f"the Machine after its {kind}", name in {m["metadata"]["name"] for m in rig.machines(all=True)}, False)
    # A MachineDeployment that nobody asks for any more: its nodes go elsewhere, nothing of it comes back.
    rig.hub.delete("MachineDeployment", "m", rig.namespace)
    rig.until("the other one serves", 240, lambda: settled(0, 3))
    rig.stays("so it stays", 25, lambda: settled(0, 3))
    rig.at_rest(lost=4)
    return rig


def moved(world):
    "a paused Cluster whose objects are made anew with other uids, as clusterctl move does, keeps its nodes"
    rig = Rig(world, "moved")
    rig.deployment(notes={MAX: "10"})
    rig.want(3)
    rig.ready(3)
    claims, nodes = {c["metadata"]["uid"] for c in rig.claims()}, {n["metadata"]["uid"] for n in rig.nodes()}
    rig.patch("Cluster", rig.cluster, {"spec": {"paused": True}})
    time.sleep(3)
    kept = {kind: rig.hub.list(kind, rig.namespace) for kind in ("MachineDeployment", "MachineSet", "Machine", "FakeMachine")}
    for kind in reversed(kept):
        for value in kept[kind]:
            name = value["metadata"]["name"]
            rig.patch(kind, name, {"metadata": {"finalizers": None}})
            rig.hub.delete(kind, name, rig.namespace)
    there = lambda: claims == {c["metadata"]["uid"] for c in rig.claims() if not c["metadata"].get("deletionTimestamp")} and \
        nodes == {n["metadata"]["uid"] for n in rig.nodes()}
    rig.stays("nothing is taken for gone", 40, there)
    uids = {}
    for kind, values in kept.items():
        for value in values:
            meta = value["metadata"]
            old = meta["uid"]
            meta = {k: meta[k] for k in ("name", "namespace", "labels", "annotations", "finalizers", "ownerReferences") if k in meta}
            for owner in meta.get("ownerReferences", []):
                owner["uid"] = uids.get(owner["uid"], owner["uid"])
            made = rig.hub.create({"apiVersion": value["apiVersion"], "kind": kind, "metadata": meta, "spec": value["spec"]})
            uids[old] = made["metadata"]["uid"]
    rig.patch("Cluster", rig.cluster, {"spec": {"paused": False}})
    rig.until("Cluster API has them again", 120, lambda: all("nodeRef" in m.get("status", {}) for m in rig.machines()))
    rig.stays("all as it was", 40, lambda: there() and (rig.replicas(), len(rig.machines(all=True))) == (3, 3))
    rig.want(4)
    rig.ready(4)
    rig.give_up(rig.claims()[0]["metadata"]["name"])
    rig.gone(3)
    rig.stays("three", 20, lambda: (rig.replicas(), len(rig.machines(all=True))) == (3, 3))
    return rig
