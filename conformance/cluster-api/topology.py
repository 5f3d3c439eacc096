"""Whose Machines, and how they are made: several clusters in one hub, ClusterClass, Machine mode, API versions."""

import json
import time

from proxy import Proxy
from rig import CLAIM, Rig
from world import CAPACITY, MAX, MEMBER, MIN, PRICE, VERSION, annotations, cluster, is_true, machine_deployment, template


def a15(world):
    "other clusters of the hub are neither read nor written, also where names and provider ids are the same"
    return _among_others(world, "a15")


def _among_others(world, name, **spec):
    rig = Rig(world, name, start=False, cluster="c", **spec)
    other = name + "-other"
    rig.hub.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": other}})
    rig.add(*cluster(other, "c"), template(other, "t"), *cluster(name, "d"))
    rig.add(machine_deployment(other, "c", "m", notes={PRICE: "0.001"}), machine_deployment(name, "d", "x", notes={PRICE: "0.001"}))
    rig.deployment(notes={MAX: "10"})
    rig.start()
    rig.want(3)
    rig.ready(3)
    theirs = lambda: [m for k, m in world.machines.objects.copy().items() if k[0] == other or k[1].startswith("x-")]
    rig.same("Machines of others", len(theirs()), 0)
    rig.same("replicas of others", (rig.replicas("x"), world.deployments.objects[(other, "m")]["spec"]["replicas"]), (0, 0))
    # A Machine of the other cluster that has the provider id of one of ours: ours goes, it stays.
    claim = rig.claims()[0]
    twin = claim["status"]["providerID"]
    rig.add(template(other, "twin", alias=twin, neverJoins=True))
    rig.add(machine_deployment(other, "c", "twins", template="twin", replicas=1))
    rig.until("there are two of one id", 60, lambda: any(m["spec"].get("providerID") == twin for m in theirs()))
    rig.kill()
    rig.start()
    rig.stays("nobody minds", 15, lambda: len(rig.claims()) == 3 and len(rig.machines()) == 3)
    rig.give_up(claim["metadata"]["name"])
    rig.gone(2)
    rig.same("the twin", [bool(m["metadata"].get("deletionTimestamp")) for m in theirs()], [False])
    rig.same("writes to others", len([w for w in world.writes(rig.since) if f"/{other}/" in w[1] or "/x" in w[1]]), 0)
    told = [r["name"] for r in rig.api.get("ClusterAPINodeClass", name)["status"].get("resources", [])]
    rig.same("resources in the status", len(told), 1)
    rig.at_rest()
    for found in rig.hub.list("Cluster", other):
        rig.hub.delete("Cluster", found["metadata"]["name"], other)
    return rig


def _cluster_class(rig, notes):
    """A ClusterClass of fake parts, and a Cluster of it with one MachineDeployment whose replicas nobody sets."""
    meta = lambda name: {"name": name, "namespace": rig.namespace}
    part = lambda group, kind, spec: {"apiVersion": f"{group}.cluster.x-k8s.io/v1beta1", "kind": kind, "metadata": meta("t"), "spec": {"template": {"spec": spec}}}
    reference = lambda group, kind: {"templateRef": {"apiVersion": f"{group}.cluster.x-k8s.io/v1beta1", "kind": kind, "name": "t"}}
    workers = {"class": "workers", "infrastructure": reference("infrastructure", "FakeMachineTemplate"),
               "bootstrap": reference("bootstrap", "FakeConfigTemplate")}
    rig.add(
        part("infrastructure", "FakeClusterTemplate", {}), part("controlplane", "FakeControlPlaneTemplate", {}),
        part("infrastructure", "FakeMachineTemplate", {}), part("bootstrap", "FakeConfigTemplate", {}),
        {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "ClusterClass", "metadata": meta("class"), "spec": {
            "infrastructure": reference("infrastructure", "FakeClusterTemplate"),
            "controlPlane": reference("controlplane", "FakeControlPlaneTemplate"), "workers": {"machineDeployments": [workers]}}},
    )
    rig.until("the ClusterClass can be used", 60, lambda: is_true(rig.hub.get("ClusterClass", "class", rig.namespace), "VariablesReady"))
    rig.add({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": meta(rig.cluster), "spec": {"topology": {
        "classRef": {"name": "class"}, "version": VERSION,
        "workers": {"machineDeployments": [{"class": "workers", "name": "workers", "metadata": {"labels": {MEMBER: ""}, "annotations": notes}}]},
    }}})


def a21(world):
    "a ClusterClass works as long as its topology sets no replicas"
    rig = Rig(world, "a21", start=False, bare=True)
    # The rule by which Cluster API defaults replicas that nobody sets: the least size, where there is one.
    least = {MIN: "0", MAX: "10"}
    _cluster_class(rig, {CAPACITY + "cpu": "4", CAPACITY + "memory": "16Gi", CAPACITY + "maxPods": "110", **least})
    rig.until("the topology made it", 120, lambda: rig.provisioned(rig.cluster) and rig.here(world.deployments))
    name = rig.here(world.deployments)[0]["metadata"]["name"]
    rig.same("replicas at first", rig.replicas(name), 0)
    rig.start()
    rig.want(2)
    rig.ready(2, 180)
    rig.same("Machines are born with the member label", MEMBER in rig.here(world.deployments)[0]["spec"]["template"]["metadata"].get("labels", {}), True)
    rig.at_rest()
    topology = rig.hub.get("Cluster", rig.cluster, "a21")["spec"]["topology"]
    topology["workers"]["machineDeployments"][0]["replicas"] = 2
    # The webhook wants one or the other.
    for key in least:
        topology["workers"]["machineDeployments"][0]["metadata"]["annotations"].pop(key, None)
    rig.patch("Cluster", rig.cluster, {"spec": {"topology": topology}})
    time.sleep(5)
    scales = len(rig.writes("/scale"))
    rig.want(3)
    rig.stays("no fight over replicas", 40, lambda: rig.replicas(name) == 2)
    rig.same("further scale writes", len(rig.writes("/scale")) - scales, 0)
    told = [r.get("unavailable") for r in rig.api.get("ClusterAPINodeClass", "a21")["status"].get("resources", [])]
    rig.same("told", any("ReplicasOwnedByTopology" in (t or "") for t in told), True)
    return rig


def a22(world):
    "machines of their own are made once, also across crashes"
    rig = Rig(world, "a22", start=False, domains=["a", "b"], launchMode="Machine")
    nothing = {CAPACITY + key: None for key in ("cpu", "memory", "maxPods")}
    rig.deployment(notes=nothing)
    rig.patch("FakeMachineTemplate", "t", {"status": {"capacity": {"cpu": "4", "memory": "16Gi", "pods": "110"}, "nodeInfo": {"architecture": "amd64", "operatingSystem": "linux"}}}, "status")
    rig.until("the failure domains are known", 60, lambda: len(rig.hub.get("Cluster", rig.cluster, "a22").get("status", {}).get("failureDomains", [])) == 2)
    rig.start()
    rig.want(3, topologySpreadConstraints=[{"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule",
                                            "labelSelector": {"matchLabels": {"app": "a22"}}}])
    rig.until("a clone is made", 60, lambda: rig.here(world.infra))
    rig.kill()
    rig.start()
    rig.ready(3, 180)
    rig.same("Machines and clones", (len(rig.machines(all=True)), len(rig.here(world.infra)), rig.replicas()), (3, 3, 0))
    names = {c["metadata"]["name"] for c in rig.claims()}
    rig.same("named after their NodeClaims", {m["metadata"]["name"] for m in rig.machines()} == names, True)
    rig.same("zones", len({m["spec"].get("failureDomain") for m in rig.machines()}), 2)
    owners = {o["kind"] for m in rig.machines() for o in m["metadata"].get("ownerReferences", [])}
    rig.same("owners", owners, {"Cluster"})
    rig.want(0)
    for claim in rig.claims():
        rig.api.delete("NodeClaim", claim["metadata"]["name"])
    rig.until("everything is gone", 120, lambda: not rig.machines(all=True) and not rig.here(world.infra) and not rig.claims())
    rig.rules()
    return rig


def a24(world):
    "the management cluster stops serving v1beta1 while launches run"
    rig = Rig(world, "a24")
    rig.deployment(notes={MAX: "20"})
    rig.want(4)
    rig.ready(4)
    foreign = lambda m: json.dumps({k: v for k, v in m["spec"].items()}, sort_keys=True)
    before = {m["metadata"]["uid"]: foreign(m) for m in rig.machines()}
    template_before = json.dumps(rig.hub.get("MachineDeployment", "m", "a24")["spec"]["template"], sort_keys=True)
    crds = [f"{plural}.cluster.x-k8s.io" for plural in ("clusters", "machines", "machinesets", "machinedeployments")]

    def serve(version, served):
        for name in crds:
            crd = rig.hub.get("CustomResourceDefinition", name)
            for entry in crd["spec"]["versions"]:
                if entry["name"] == version:
                    entry["served"] = served
            rig.hub.request("PUT", rig.hub.path("CustomResourceDefinition", None, name), crd)

    rig.want(8)
    rig.until("a launch is under way", 60, lambda: rig.replicas() > 4)
    serve("v1beta1", False)
    try:
        rig.ready(8, 180)
        rig.want(10)
        rig.ready(10, 180)
        now = {m["metadata"]["uid"]: foreign(m) for m in rig.machines()}
        rig.same("Machine specs as they were", all(now[uid] == spec for uid, spec in before.items()), True)
        rig.same("template as it was", json.dumps(rig.hub.get("MachineDeployment", "m", "a24")["spec"]["template"], sort_keys=True) == template_before, True)
        rig.same("whole objects written", [w for w in rig.writes() if w[0] in ("update", "create")], [])
        rig.at_rest()
    finally:
        serve("v1beta1", True)
    return rig


def _in_the_old_version(world, name, **spec):
    """A Karpenter that is shown v1beta1 alone, through Cluster API's own conversion; then both, then v1beta2 alone."""
    alone = spec.get("launchMode") == "Machine"
    rig = Rig(world, name, start=False, domains=["a", "b"], drift="Karpenter", **spec)
    rig.proxy = Proxy(world, name)
    rig.proxy.hide("v1beta2")
    rig.env = rig.proxy.env
    # What stands elsewhere in v1beta1, or in another shape.
    value = machine_deployment(rig.namespace, rig.cluster, "m", notes={MAX: "20"}, rollout={"strategy": {"type": "OnDelete"}})
    value["spec"]["template"]["spec"]["deletion"] = {"nodeDrainTimeoutSeconds": 90}
    rig.add(value)
    rig.until("the failure domains are known", 60, lambda: len(rig.hub.get("Cluster", rig.cluster, name).get("status", {}).get("failureDomains", [])) == 2)
    written = lambda version: [path for _, path in rig.proxy.passed if path.startswith(f"/apis/cluster.x-k8s.io/{version}/namespaces/{name}/")]
    try:
        rig.start()
        rig.want(3)
        rig.ready(3, 180)
        rig.same("its strategy is known", rig.told("RolloutStrategy"), [])
        for machine in rig.machines():
            reference = machine["spec"]["infrastructureRef"]
            rig.same("reference", (reference["apiGroup"], reference["kind"]), ("infrastructure.cluster.x-k8s.io", "FakeMachine"))
            rig.same("time-outs", machine["spec"].get("deletion", {}).get("nodeDrainTimeoutSeconds"), 90)
        if alone:
            rig.until("the Machines are told to be up to date", 60, lambda: all(is_true(m, "UpToDate") for m in rig.machines()))
            rig.same("zones", {m["spec"].get("failureDomain") for m in rig.machines()} <= {"a", "b"}, True)
        # One that is held up beyond its time: Cluster API is to wait no longer, which is said in the old shape where Karpenter owns the Machine.
        machine = rig.machines()[0]
        hook = {"pre-terminate.delete.hook.machine.cluster.x-k8s.io/backup": ""}
        rig.patch("Machine", machine["metadata"]["name"], {"metadata": {"annotations": hook}})
        claim = annotations(machine)[CLAIM]
        by = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 5))
        rig.api.patch("NodeClaim", claim, {"metadata": {"annotations": {"karpenter.sh/nodeclaim-termination-timestamp": by}}})
        rig.give_up(claim)
        here = lambda: rig.hub.get("Machine", machine["metadata"]["name"], name)
        hurried = lambda: here()["spec"].get("deletion", {}).get("nodeDeletionTimeoutSeconds") == 1 if alone else \
            "machine.cluster.x-k8s.io/exclude-node-draining" in annotations(here())
        rig.until("Cluster API is told to wait no longer", 90, hurried)
        rig.patch("Machine", machine["metadata"]["name"], {"metadata": {"annotations": {key: None for key in hook}}})
        rig.gone(2)
        rig.same("writes in the new version", written("v1beta2"), [])
        rig.facts["writes in the old version"] = len(written("v1beta1"))
        before = {m["metadata"]["uid"]: json.dumps(m["spec"], sort_keys=True) for m in rig.machines()}
        # The management cluster is upgraded while a launch is under way.
        rig.proxy.hide()
        rig.want(4)
        rig.until("a launch is under way", 60, lambda: len(rig.claims()) == 4)
        rig.proxy.hide("v1beta1")
        rig.ready(4, 180)
        rig.want(5)
        rig.ready(5, 180)
        now = {m["metadata"]["uid"]: json.dumps(m["spec"], sort_keys=True) for m in rig.machines()}
        rig.same("Machine specs as they were", all(now.get(uid) == spec for uid, spec in before.items()), True)
        rig.same("time-outs of all", {m["spec"].get("deletion", {}).get("nodeDrainTimeoutSeconds") for m in rig.machines()}, {90})
        rig.same("writes in the new version, at last", bool(written("v1beta2")), True)
        rig.at_rest()
    finally:
        rig.proxy.stop()
    return rig


def a24_old(world):
    "from v1beta1 alone, as Cluster API converts it, to v1beta2 alone"
    return _in_the_old_version(world, "a24-old")


def a24_old_machine(world):
    "machines of their own, from v1beta1 alone, as Cluster API converts it, to v1beta2 alone"
    return _in_the_old_version(world, "a24-old-machine", launchMode="Machine")


def a22_bootstrap(world):
    "machines of their own with bootstrap configurations cloned from a template; all of it goes with the NodeClaim"
    rig = Rig(world, "a22-bootstrap", launchMode="Machine")
    rig.add({"apiVersion": "bootstrap.cluster.x-k8s.io/v1beta1", "kind": "FakeConfigTemplate", "metadata": {"name": "t", "namespace": rig.namespace},
             "spec": {"template": {"spec": {}}}})
    rig.deployment(notes={MAX: "10"}, config="t")
    rig.want(2)
    rig.ready(2)
    configs = lambda: rig.hub.list("FakeConfig", rig.namespace)
    parts = lambda: (len(rig.machines(all=True)), len(rig.here(world.infra)), len(configs()))
    rig.same("Machines, clones and configurations", parts(), (2, 2, 2))
    rig.same("they are their Machines'", all(any(o["kind"] == "Machine" for o in c["metadata"].get("ownerReferences", [])) for c in configs()), True)
    rig.give_up(rig.claims()[0]["metadata"]["name"])
    rig.until("one of each is left", 120, lambda: len(rig.claims()) == 1 and parts() == (1, 1, 1))
    rig.at_rest()
    return rig


def machine_set(world):
    "a MachineSet of no MachineDeployment is scaled like one"
    rig = Rig(world, "machine-set")
    value = machine_deployment(rig.namespace, rig.cluster, "s", notes={MAX: "10"})
    value["kind"] = "MachineSet"
    rig.add(value)
    replicas = lambda: rig.hub.get("MachineSet", "s", rig.namespace)["spec"]["replicas"]
    rig.want(3)
    rig.ready(3)
    rig.same("replicas", replicas(), 3)
    victim = next(m for m in rig.machines())
    rig.give_up(annotations(victim)[CLAIM])
    rig.gone(2)
    rig.same("the right one went", victim["metadata"]["name"] in {m["metadata"]["name"] for m in rig.machines(all=True)}, False)
    rig.stays("two", 20, lambda: (replicas(), len(rig.machines(all=True))) == (2, 2))
    rig.at_rest()
    return rig


def adopted(world):
    "nodes that were there before become Karpenter's: each gets a NodeClaim, none is replaced, one can be deleted"
    rig = Rig(world, "adopted", start=False, adoption="Existing")
    rig.template("pool", nodeLabels={"karpenter.sh/nodepool": "adopted"}, untainted=True)
    rig.deployment(notes={MAX: "10"}, template="pool", replicas=3)
    rig.until("three nodes by hand", 60, lambda: len(rig.nodes()) == 3 and all("nodeRef" in m.get("status", {}) for m in rig.machines()))
    nodes = {n["metadata"]["uid"] for n in rig.nodes()}
    rig.start()
    rig.until("each has a NodeClaim", 120, lambda: rig.initialized() == len(rig.claims()) == 3)
    rig.stays("the same nodes", 20, lambda: {n["metadata"]["uid"] for n in rig.nodes()} == nodes and rig.replicas() == 3)
    rig.want(2)
    rig.until("pods run on them", 60, lambda: rig.running() == 2)
    busy = {p["spec"].get("nodeName") for p in rig.pods()}
    idle = next(c for c in rig.claims() if c["status"].get("nodeName") not in busy)
    rig.api.delete("NodeClaim", idle["metadata"]["name"])
    rig.gone(2)
    rig.stays("two", 20, lambda: (rig.replicas(), len(rig.machines(all=True))) == (2, 2))
    rig.at_rest()
    return rig
