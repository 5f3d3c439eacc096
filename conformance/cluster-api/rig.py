"""One scenario: a Cluster in a namespace of its own, a NodePool, pods, Karpenter; and the rules that hold in every scenario."""

import signal
import time
from collections import Counter

import rights
from kube import Refused
from world import cluster as world_cluster
from world import (GROUP, Failed, annotations, condition, is_true, machine_deployment, node_class, node_pool, stamp, template,
                   workload)

CLAIM, CLAIM_UID = GROUP + "nodeclaim", GROUP + "nodeclaim-uid"


class Rig:
    def __init__(self, world, name, disruption=None, start=True, domains=None, pool=None, env=None, bare=False, cluster=None, **spec):
        self.world, self.name, self.namespace, self.cluster = world, name, name, cluster or name
        self.hub, self.api, self.env = world.hub, world.api, env or {}
        self.began, self.since = time.time(), stamp()
        self.alone = spec.get("launchMode") == "Machine"
        spec.setdefault("timeouts", {}).setdefault("surplus", "20s")
        # A control plane that is kept may have one of an earlier run.
        if not self.hub.exists("Namespace", name):
            self.hub.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        if world.arguments.rights:
            rights.enter(world, name, self.cluster)
        if not bare:
            self.add(*world_cluster(name, self.cluster, domains), template(name, "t"))
        self.api.create(node_class(name, **spec))
        self.api.create(node_pool(name, disruption, **(pool or {})))
        self.until("the Cluster can be used", 60, lambda: bare or self.provisioned(self.cluster))
        self.karpenter = self.start() if start else None
        self.facts = {}

    def provisioned(self, name):
        found = self.hub.get("Cluster", name, self.namespace).get("status", {}).get("initialization", {})
        return found.get("infrastructureProvisioned") and found.get("controlPlaneInitialized")

    # ---- what is done

    def add(self, *objects):
        for value in objects:
            for attempt in range(20):
                try:
                    self.hub.create(value)
                    break
                except Refused as refused:  # left by an earlier run, or a webhook whose server's cache is not there yet
                    if refused.code not in (500, 403, 404, 409) or attempt == 19:
                        raise
                    if refused.code == 409:
                        self.hub.delete(value["kind"], value["metadata"]["name"], value["metadata"]["namespace"])
                    time.sleep(0.3)

    def deployment(self, name="m", notes=None, template="t", **more):
        self.add(machine_deployment(self.namespace, self.cluster, name, template, notes, **more))

    def template(self, name, **knobs):
        self.add(template(self.namespace, name, **knobs))

    def patch(self, kind, name, change, sub=None):
        return self.hub.patch(kind, name, change, self.namespace, sub)

    def start(self, **env):
        self.karpenter = self.world.karpenter(self.namespace, self.cluster, env={**self.env, **env})
        return self.karpenter

    def kill(self, process=None):
        process = process or self.karpenter
        process.ended = True
        process.stop(signal.SIGKILL)

    def want(self, pods, **shape):
        if self.api.exists("Deployment", self.name, "default"):
            self.api.scale("Deployment", self.name, pods, "default")
        else:
            self.api.create(workload(self.name, pods, nodeSelector={"karpenter.sh/nodepool": self.name}, **shape))

    def give_up(self, claim):
        """Takes the pod off a NodeClaim's node for good, then deletes the NodeClaim."""
        node = self.claim(claim)["status"].get("nodeName")
        for pod in self.pods():
            if pod["spec"].get("nodeName") == node:
                cost = {"metadata": {"annotations": {"controller.kubernetes.io/pod-deletion-cost": "-1000"}}}
                self.api.patch("Pod", pod["metadata"]["name"], cost, "default")
        self.want(len(self.pods()) - 1)
        self.until("its pod is gone", 60, lambda: not any(p["spec"].get("nodeName") == node for p in self.pods()))
        self.api.delete("NodeClaim", claim)

    def until(self, what, seconds, holds):
        return self.world.until(what, seconds, holds)

    def stays(self, what, seconds, holds):
        return self.world.stays(what, seconds, holds)

    # ---- what is seen

    def here(self, watch):
        return [value for (namespace, _), value in sorted(watch.objects.copy().items()) if namespace == self.namespace]

    def machines(self, all=False):
        return [m for m in self.here(self.world.machines) if all or not m["metadata"].get("deletionTimestamp")]

    def in_set(self, newest):
        """Machines of the newest MachineSet, or of the others."""
        revision = lambda s: int(annotations(s).get("machinedeployment.clusters.x-k8s.io/revision", "0"))
        sets = sorted(self.here(self.world.sets), key=revision)
        last = sets[-1]["metadata"]["name"] if sets else ""
        return [m for m in self.machines(all=True) if (m["metadata"]["labels"].get("cluster.x-k8s.io/set-name") == last) == newest]

    def claims(self):
        pool = lambda c: c["metadata"].get("labels", {}).get("karpenter.sh/nodepool")
        return [c for c in self.world.claims.objects.copy().values() if pool(c) == self.name]

    def claim(self, name):
        return self.world.claims.objects[("", name)]

    def pods(self):
        mine = lambda p: p["metadata"].get("labels", {}).get("app") == self.name and not p["metadata"].get("deletionTimestamp")
        return [p for p in self.world.pods.objects.copy().values() if mine(p)]

    def nodes(self):
        ours = f"fake://{self.namespace}/"
        return [n for n in self.world.nodes.objects.copy().values() if n["spec"].get("providerID", "").startswith(ours)]

    def replicas(self, name="m"):
        found = self.world.deployments.objects.get((self.namespace, name))
        return found["spec"].get("replicas", 0) if found else 0

    def made_from(self, name):
        """How many machines this MachineDeployment is to have, or are to be made from its template."""
        if not self.alone:
            return self.replicas(name)
        target = lambda c: annotations(c).get(GROUP + "target", "")
        return sum(1 for c in self.claims() if target(c).endswith("/" + name) and not c["metadata"].get("deletionTimestamp"))

    def claimed(self):
        return sum(1 for m in self.machines() if CLAIM_UID in annotations(m))

    def initialized(self):
        return sum(1 for c in self.claims() if is_true(c, "Initialized") and not c["metadata"].get("deletionTimestamp"))

    def running(self):
        return sum(1 for p in self.pods() if p.get("status", {}).get("phase") == "Running")

    def launched(self):
        """Why the NodeClaims that wait do so."""
        told = [condition(c, "Launched") for c in self.claims()]
        return [(c["reason"], c.get("message", "")) for c in told if c and c["status"] != "True"]

    def told(self, reason):
        """What events of this reason say, since the scenario began."""
        events = (e for e in self.api.list("Event") if e.get("reason") == reason)
        return [e.get("message", "") for e in events if e["metadata"]["creationTimestamp"][:19] >= self.since[:19]]

    def class_condition(self, kind):
        return condition(self.api.get("ClusterAPINodeClass", self.name), kind) or {}

    def ready(self, count, seconds=120):
        return self.until(f"{count} nodes are ready and their pods run", seconds,
                          lambda: self.initialized() == count and self.running() == count)

    def gone(self, count=0, seconds=120):
        return self.until(f"{count} NodeClaims and Machines are left", seconds,
                          lambda: len(self.claims()) == count and len(self.machines(all=True)) == count)

    def levels(self, name="m"):
        """Every number of replicas there was, in order."""
        seen = []
        for _, what, value in self.world.deployments.history:
            meta = value["metadata"]
            if (meta.get("namespace"), meta["name"]) == (self.namespace, name) and what != "DELETED":
                level = value["spec"].get("replicas", 0)
                if not seen or seen[-1] != level:
                    seen.append(level)
        return seen

    def writes(self, part="", refused=False):
        """Karpenter's writes to this scenario's Cluster API objects; with those that lost against another's, if asked for."""
        mine = [w for w in self.world.writes(self.since) if part in w[1] and f"/namespaces/{self.namespace}/" in w[1]]
        return [w for w in mine if refused or (w[2] and w[2] < 400)]

    # ---- what must hold

    def same(self, what, found, wanted):
        self.facts[what] = found
        if found != wanted:
            raise Failed(f"{what}: {found}, not {wanted}")

    def at_most(self, what, found, bound):
        self.facts[what] = found
        if found > bound:
            raise Failed(f"{what}: {found}, more than {bound}")

    def history(self):
        """Machines of this scenario: when they were first seen, the claims they had, when they began to go."""
        machines = {}
        for when, what, value in self.world.machines.history:
            meta = value["metadata"]
            if meta.get("namespace") != self.namespace:
                continue
            entry = machines.setdefault(meta["uid"], {"name": meta["name"], "born": when, "claims": [], "goes": None})
            uid = annotations(value).get(CLAIM_UID)
            if uid and uid not in entry["claims"]:
                entry["claims"].append(uid)
            if (meta.get("deletionTimestamp") or what == "DELETED") and entry["goes"] is None:
                entry["goes"] = when
        return machines

    def taken(self):
        """Claimed Machines that began to go though their NodeClaim did not: Cluster API's own doing, or a wrong deletion."""
        ends = {}
        for when, what, value in self.world.claims.history:
            if value["metadata"].get("deletionTimestamp") or what == "DELETED":
                ends.setdefault(value["metadata"]["uid"], when)
        gone = [m for m in self.history().values() if m["goes"] and m["claims"]]
        return [m["name"] for m in gone if all(ends.get(uid, float("inf")) > m["goes"] + 0.5 for uid in m["claims"])]

    def rules(self):
        """No Machine had two claims, no NodeClaim has two Machines."""
        double = [m["name"] for m in self.history().values() if len(m["claims"]) > 1]
        if double:
            raise Failed(f"claimed twice: {double}")
        owners = [annotations(m).get(CLAIM_UID) for m in self.machines() if CLAIM_UID in annotations(m)]
        if len(owners) != len(set(owners)):
            raise Failed("a NodeClaim has two Machines")

    def at_rest(self, foreign=0, lost=0):
        """Everything is served and nothing is left over."""
        self.rules()
        machines, claims = self.machines(), self.claims()
        if len(machines) != len(claims) + foreign:
            raise Failed(f"{len(machines)} Machines, {len(claims)} NodeClaims, {foreign} of others")
        ids = [c["status"].get("providerID") for c in claims]
        if None in ids or len(ids) != len(set(ids)):
            raise Failed(f"provider ids: {ids}")
        self.at_most("taken", len(self.taken()), lost)

    def row(self):
        """For the table: what was written and what became of Machines."""
        writes = self.writes(refused=True)
        history = self.history()
        mds = [md["metadata"]["name"] for md in self.here(self.world.deployments)]
        levels = "; ".join((f"{md}: " if len(mds) > 1 else "") + "→".join(map(str, self.levels(md))) for md in mds)
        nodes = sum(1 for m in history.values() if m["claims"])
        accepted = sum(1 for _, _, code in writes if code and code < 400)
        # The kind and the subresource of what was refused.
        parts = lambda uri: "/".join(uri.split("?")[0].split("/")[6::2])
        refused = Counter(f"{code} {parts(uri)}" for _, uri, code in writes if not code or code >= 400)
        self.facts["refused"] = dict(refused)
        return {
            "levels": levels, "scale writes": len(self.writes("/scale")), "created": len(history),
            "gone": sum(1 for m in history.values() if m["goes"]), "taken": len(self.taken()), "nodes": nodes,
            "writes": accepted, "refused": len(writes) - accepted, "per node": round(accepted / nodes, 2) if nodes else None,
            "seconds": round(time.time() - self.began),
        }

    def end(self):
        """Clears up without Karpenter."""
        world = self.world
        for process in world.karpenters:
            process.ended = True
            process.stop()
        world.karpenters.clear()
        if "capi-core" in world.processes:
            world.processes["capi-core"].send(signal.SIGCONT)
        self.api.delete("Deployment", self.name, "default")
        for claim in self.claims():
            self.drop("NodeClaim", claim["metadata"]["name"])
        self.api.delete("NodePool", self.name)
        self.drop("ClusterAPINodeClass", self.name)
        for found in self.hub.list("Cluster", self.namespace):
            self.hub.delete("Cluster", found["metadata"]["name"], self.namespace)
        world.until("everything is cleared up", 60, lambda: not self.machines(all=True))
        for node in self.nodes():
            self.drop("Node", node["metadata"]["name"])

    def drop(self, kind, name):
        try:
            self.api.patch(kind, name, {"metadata": {"finalizers": None}})
        except Refused:
            pass
        self.api.delete(kind, name)
