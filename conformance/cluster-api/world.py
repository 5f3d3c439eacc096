"""Cluster API's real controllers, the fake infrastructure and Karpenter, as processes; their objects; what is read off them.

Started inside the network namespace of the control plane. The webhooks are served by a manager of their own, which is told to look
after nothing (`--watch-filter`), so that the controllers can be stopped while objects can still be written.
"""

import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections import Counter

from kube import Api, Watch

GROUP = "karpenter.cluster.x-k8s.io/"
MEMBER = "node.cluster.x-k8s.io/karpenter-member"
CAPACITY = "capacity.cluster-autoscaler.kubernetes.io/"
MAX = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size"
MIN = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-min-size"
PRICE = GROUP + "price"
VERSION = "v1.36.3"


class Failed(Exception):
    """An outcome that is not the one the simulator's tests have."""


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def annotations(value):
    return value["metadata"].get("annotations", {})


def condition(value, kind):
    conditions = value.get("status", {}).get("conditions", [])
    return next((c for c in conditions if c["type"] == kind), None)


def is_true(value, kind):
    found = condition(value, kind)
    return found is not None and found["status"] == "True"


class Process:
    def __init__(self, name, command, log, env=None):
        self.name = name
        self.log = open(log, "ab")
        full = dict(os.environ, **(env or {}))
        self.running = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, env=full, start_new_session=True)

    def alive(self):
        return self.running.poll() is None

    def send(self, number):
        if self.alive():
            self.running.send_signal(number)

    def stop(self, number=signal.SIGTERM):
        self.send(signal.SIGCONT)
        self.send(number)
        try:
            self.running.wait(15)
        except subprocess.TimeoutExpired:
            self.running.kill()
            self.running.wait()


class World:
    """dir: the workload cluster's control plane; hub_dir: the management cluster's, the same one if they are joined."""

    def __init__(self, arguments):
        self.arguments = arguments
        self.dir, self.hub_dir = arguments.dir, arguments.hub_dir or arguments.dir
        self.api = Api(f"{self.dir}/admin.kubeconfig")
        self.hub = self.api if self.hub_dir == self.dir else Api(f"{self.hub_dir}/admin.kubeconfig")
        self.joined = self.hub is self.api
        self.home = self.hub if arguments.inside else self.api  # where Karpenter runs
        self.moved = threading.Condition()
        self.processes = {}
        self.karpenters = []

    # ---- processes

    def start(self):
        a = self.arguments
        hooks = free_port()
        admin = f"{self.hub_dir}/admin.kubeconfig"
        subprocess.run([f"{a.bin}/fakeinfra", "install", "--kubeconfig", admin, "--config", a.config, "--url", f"https://127.0.0.1:{hooks}",
                        "--ca", f"{self.hub_dir}/pki/ca.crt"], check=True)
        self.manager("capi-webhooks", hooks, ["--watch-filter", "nobody"])
        self.controllers()
        workload = [] if self.joined else ["--workload-kubeconfig", f"{self.dir}/admin.kubeconfig"]
        self.spawn("fakeinfra", [f"{a.bin}/fakeinfra", "run", "--kubeconfig", admin, *workload])
        crds = subprocess.run([a.karpenter, "crds"], check=True, capture_output=True).stdout
        subprocess.run(["kubectl", "--kubeconfig", f"{self.dir}/admin.kubeconfig", "apply", "--server-side", "-f", "-"], input=crds,
                       check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["kubectl", "--kubeconfig", f"{self.dir}/admin.kubeconfig", "wait", "--for", "condition=Established", "crd", "--all",
                        "--timeout", "60s"], check=True, stdout=subprocess.DEVNULL)
        self.machines, self.deployments = Watch(self.hub, "Machine", self.moved), Watch(self.hub, "MachineDeployment", self.moved)
        self.sets, self.infra = Watch(self.hub, "MachineSet", self.moved), Watch(self.hub, "FakeMachine", self.moved)
        self.claims, self.nodes = Watch(self.api, "NodeClaim", self.moved), Watch(self.api, "Node", self.moved)
        self.pods = Watch(self.api, "Pod", self.moved)

    def spawn(self, name, command, env=None):
        self.processes[name] = Process(name, command, f"{self.arguments.out}/{name}.log", env)

    def manager(self, name, hooks, more=()):
        health = free_port()
        env = {"POD_NAMESPACE": "capi-system", "POD_NAME": name, "POD_UID": "00000000-0000-0000-0000-000000000000"}
        self.spawn(name, [f"{self.arguments.bin}/capi-core", "--kubeconfig", f"{self.hub_dir}/capi.kubeconfig", "--webhook-port", str(hooks),
                          "--webhook-cert-dir", f"{self.hub_dir}/pki", "--health-addr", f"127.0.0.1:{health}",
                          "--diagnostics-address", f"127.0.0.1:{free_port()}", "--insecure-diagnostics", "--feature-gates", "ClusterTopology=true",
                          "--kube-api-qps", "500", "--kube-api-burst", "1000", "--clustercache-client-qps", "500",
                          "--clustercache-client-burst", "1000", *more], env)
        self.ready(f"http://127.0.0.1:{health}/readyz", self.processes[name])

    def controllers(self):
        """Starts Cluster API's controllers, or starts them again."""
        self.manager("capi-core", free_port())

    def ready(self, url, process, seconds=120):
        end = time.time() + seconds
        while subprocess.run(["curl", "-sf", "-m", "2", "-o", "/dev/null", url]).returncode:
            if not process.alive() or time.time() > end:
                raise Failed(f"{process.name} did not become ready")
            time.sleep(0.2)

    def karpenter(self, namespace, cluster="c", env=None, **settings):
        """Starts a Karpenter for one Cluster. It needs no lease (but where rights are looked at): who starts two gets two that write."""
        probes = free_port()
        full = {
            "KUBECONFIG": f"{self.dir}/karpenter.kubeconfig", "CLUSTER_NAME": cluster, "CLUSTER_NAMESPACE": namespace,
            "DISABLE_LEADER_ELECTION": "false" if self.arguments.rights else "true", "LEADER_ELECTION_NAMESPACE": "kube-system",
            "HEALTH_PROBE_PORT": str(probes), "METRICS_PORT": str(free_port()),
            "BATCH_IDLE_DURATION": "1s", "LOG_LEVEL": "info", **settings, **(env or {}),
        }
        if self.arguments.inside:
            full.update(KUBECONFIG=f"{self.hub_dir}/karpenter.kubeconfig", CLUSTER_API_IN_MANAGEMENT_CLUSTER="true")
        elif not self.joined:
            full.setdefault("CLUSTER_API_KUBECONFIG", f"{self.hub_dir}/karpenter.kubeconfig")
        process = Process("karpenter", [self.arguments.karpenter, "run", "--provider", "cluster-api"],
                          f"{self.arguments.out}/karpenter.log", full)
        self.karpenters.append(process)
        process.metrics = full["METRICS_PORT"]
        self.ready(f"http://127.0.0.1:{probes}/readyz", process)
        return process

    def stop(self):
        for process in [*self.karpenters, *reversed(self.processes.values())]:
            process.stop()

    # ---- time

    def until(self, what, seconds, holds):
        """How long it took until something held; everything that is watched moves it on."""
        began = time.time()
        end = began + seconds * self.arguments.patience
        while True:
            with self.moved:
                if holds():
                    return time.time() - began
                if time.time() > end:
                    break
                self.moved.wait(0.5)
            for process in [*self.karpenters, *self.processes.values()]:
                if not process.alive() and not getattr(process, "ended", False):
                    raise Failed(f"{process.name} ended")
        raise Failed(f"not within {seconds:.0f} s (times {self.arguments.patience}): {what}")

    def stays(self, what, seconds, holds):
        end = time.time() + seconds
        while time.time() < end:
            with self.moved:
                if not holds():
                    raise Failed(f"did not stay so: {what}")
                self.moved.wait(min(0.5, max(0.01, end - time.time())))

    def requests(self, since):
        """Karpenter's requests to the management cluster about Cluster API's objects since then, from the audit log."""
        try:
            lines = open(f"{self.hub_dir}/log/audit.log").read().splitlines()
        except FileNotFoundError:
            return
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                continue  # still being written
            group = event.get("objectRef", {}).get("apiGroup", "")
            ours = group.endswith("cluster.x-k8s.io") and not group.startswith("karpenter")
            if ours and event["requestReceivedTimestamp"] >= since:
                yield event

    def writes(self, since):
        """Karpenter's writes to the management cluster since then: (verb, path, status)."""
        writes = [event for event in self.requests(since) if event["verb"] not in ("get", "list", "watch")]
        return [(event["verb"], event["requestURI"], event.get("responseStatus", {}).get("code")) for event in writes]

    def reads(self, since):
        """How often Karpenter read what there since then: get machines, list machines, ..."""
        return Counter(f"{event['verb']} {event['objectRef']['resource']}" for event in self.requests(since) if event["verb"] in ("get", "list"))


def stamp():
    now = time.time()
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1e6):06d}Z"


# ---- objects


def cluster(namespace, name, domains=None, **spec):
    reference = lambda group, kind: {"apiGroup": group + ".cluster.x-k8s.io", "kind": kind, "name": name}
    meta = {"name": name, "namespace": namespace}
    infra = {"failureDomains": domains} if domains else {}
    return [
        {"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "FakeCluster", "metadata": meta, "spec": infra},
        {"apiVersion": "controlplane.cluster.x-k8s.io/v1beta1", "kind": "FakeControlPlane", "metadata": meta, "spec": {"version": VERSION}},
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name + "-bootstrap", "namespace": namespace}, "stringData": {"value": "#"}},
        {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": meta,
         "spec": {"infrastructureRef": reference("infrastructure", "FakeCluster"),
                  "controlPlaneRef": reference("controlplane", "FakeControlPlane"), **spec}},
    ]


def template(namespace, name, **knobs):
    return {"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "FakeMachineTemplate",
            "metadata": {"name": name, "namespace": namespace}, "spec": {"template": {"spec": knobs}}}


def machine_deployment(namespace, cluster, name, template="t", notes=None, cpu="4", memory="16Gi", replicas=0, domain=None, config=None, **spec):
    notes = {CAPACITY + "cpu": cpu, CAPACITY + "memory": memory, CAPACITY + "maxPods": "110", **(notes or {})}
    inner = {
        "clusterName": cluster, "version": VERSION, "bootstrap": {"dataSecretName": cluster + "-bootstrap"},
        "infrastructureRef": {"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "FakeMachineTemplate", "name": template},
    }
    if domain:
        inner["failureDomain"] = domain
    if config:
        inner["bootstrap"] = {"configRef": {"apiGroup": "bootstrap.cluster.x-k8s.io", "kind": "FakeConfigTemplate", "name": config}}
    return {
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineDeployment",
        "metadata": {"name": name, "namespace": namespace, "labels": {MEMBER: ""}, "annotations": {k: v for k, v in notes.items() if v is not None}},
        "spec": {"clusterName": cluster, "replicas": replicas, "selector": {"matchLabels": {"md": name}},
                 "template": {"metadata": {"labels": {"md": name}}, "spec": inner}, **spec},
    }


def node_class(name, **spec):
    return {"apiVersion": "karpenter.cluster.x-k8s.io/v1alpha1", "kind": "ClusterAPINodeClass", "metadata": {"name": name}, "spec": spec}


def node_pool(name, disruption=None, **template):
    """By default nothing is disrupted but by hand."""
    disruption = disruption or {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "Never", "budgets": [{"nodes": "100%"}]}
    reference = {"group": "karpenter.cluster.x-k8s.io", "kind": "ClusterAPINodeClass", "name": name}
    inner = {"requirements": [], "nodeClassRef": reference, "expireAfter": "Never", **template}
    return {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": name},
            "spec": {"template": {"spec": inner}, "disruption": disruption}}


def workload(name, replicas, cpu="3", memory="1Gi", **pod):
    """Pods of which one fits on a node, unless told otherwise."""
    container = {"name": "c", "image": "none", "resources": {"requests": {"cpu": cpu, "memory": memory}}}
    return {
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": "default"},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "strategy": {"type": "Recreate"},
                 "template": {"metadata": {"labels": {"app": name}},
                              "spec": {"terminationGracePeriodSeconds": 0, "containers": [container], **pod}}},
    }
