"""The cluster: Karpenter's own embedded API server, and what plays scheduler, kubelets and a controller of pods on it."""

import datetime
import http.client
import json
import re
import threading
import time

PATHS = {
    "Node": "/api/v1/nodes", "Pod": "/api/v1/namespaces/default/pods", "Secret": "/api/v1/namespaces/karpenter/secrets",
    "Event": "/api/v1/namespaces/default/events", "Namespace": "/api/v1/namespaces",
    "NodePool": "/apis/karpenter.sh/v1/nodepools", "NodeClaim": "/apis/karpenter.sh/v1/nodeclaims",
    "CloudStackNodeClass": "/apis/karpenter.k8s.cloudstack/v1/cloudstacknodeclasses",
    "ReplicaSet": "/apis/apps/v1/namespaces/default/replicasets",
    "ConfigMap": "/api/v1/namespaces/karpenter/configmaps",
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
}


class Refused(Exception):
    def __init__(self, code, text):
        super().__init__(f"{code} {text}")
        self.code = code


def now():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


class Kube:
    def __init__(self, kubeconfig):
        self.host = re.search(r"server: \"?http://([^\"\s]+)", open(kubeconfig).read()).group(1)
        self.local = threading.local()

    def request(self, method, path, body=None, content="application/json"):
        for attempt in range(3):
            connection = getattr(self.local, "connection", None) or http.client.HTTPConnection(self.host, timeout=60)
            self.local.connection = connection
            try:
                connection.request(method, path, None if body is None else json.dumps(body), {"Content-Type": content})
                answer = connection.getresponse()
                text = answer.read()
                break
            except (OSError, http.client.HTTPException):
                connection.close()
                self.local.connection = None
                if attempt == 2:
                    raise
        value = json.loads(text) if text else {}
        if answer.status >= 400:
            raise Refused(answer.status, value.get("message", text))
        return value

    def list(self, kind):
        return self.request("GET", PATHS[kind])["items"]

    def get(self, kind, name):
        try:
            return self.request("GET", f"{PATHS[kind]}/{name}")
        except Refused as refused:
            if refused.code == 404:
                return None
            raise

    def create(self, value):
        return self.request("POST", PATHS[value["kind"]], value)

    def patch(self, kind, name, change, sub=""):
        return self.request("PATCH", f"{PATHS[kind]}/{name}{sub}", change, "application/merge-patch+json")

    def delete(self, kind, name, **options):
        try:
            return self.request("DELETE", f"{PATHS[kind]}/{name}", options or None)
        except Refused as refused:
            if refused.code != 404:
                raise


def condition(value, kind):
    return next((c for c in value.get("status", {}).get("conditions", []) if c["type"] == kind), {})


def is_true(value, kind):
    return condition(value, kind).get("status") == "True"


class Play(threading.Thread):
    """Scheduler, kubelets and a controller that keeps the number of pods that is wanted; looks twice a second."""

    def __init__(self, kube, cloud, prefix):
        super().__init__(daemon=True)
        self.kube, self.cloud, self.prefix = kube, cloud, prefix
        self.wanted = {}  # name: (count, pod spec)
        self.scopes = [{}]
        self.never_join = set()
        self.paused = False
        self.problems = []
        self.serial = 0
        self.machines_at = 0.0
        self.machines = []
        self.stop = False

    def run(self):
        while not self.stop:
            try:
                if not self.paused:
                    self.look()
            except Exception as error:  # the cloud is away now and then, on purpose
                if not self.problems or self.problems[-1] != repr(error):
                    self.problems.append(repr(error))
            time.sleep(0.5)

    def look(self):
        nodes = {n["metadata"]["name"]: n for n in self.kube.list("Node")}
        pods = self.kube.list("Pod")
        if time.time() - self.machines_at > 1.5:
            try:
                self.machines = [m for s in self.scopes for m in self.cloud.machines(details="nics,servoff", keyword=self.prefix, **s)]
                self.machines_at = time.time()
            except Exception as error:
                self.problems.append(repr(error))
        for machine in self.machines:
            self.kubelet(machine, nodes)
        for pod in pods:
            gone = pod["spec"].get("nodeName") and pod["spec"]["nodeName"] not in nodes  # as the pod garbage collector does
            if gone or pod["metadata"].get("deletionTimestamp"):
                self.kube.delete("Pod", pod["metadata"]["name"], gracePeriodSeconds=0)
        pods = [p for p in pods if not p["metadata"].get("deletionTimestamp") and p["spec"].get("nodeName", "") in ("", *nodes)]
        self.controller(pods)
        self.schedule(pods, nodes)

    def kubelet(self, machine, nodes):
        name = machine["name"]
        node = nodes.get(name)
        up = machine["state"] == "Running"
        if node is None:
            if up and name not in self.never_join and machine.get("nic"):
                size = {"cpu": str(machine["cpunumber"]), "memory": f"{int(machine['memory'] * 0.97)}Mi", "pods": "110", "ephemeral-storage": "20Gi"}
                labels = {"kubernetes.io/hostname": name, "kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux"}
                taints = [{"key": "karpenter.sh/unregistered", "effect": "NoExecute"}]
                node = self.kube.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels},
                                         "spec": {"providerID": f"external-cloudstack://{machine['id']}", "taints": taints}})
                self.kube.patch("Node", name, {"status": {
                    "capacity": size, "allocatable": size, "addresses": [{"type": "InternalIP", "address": machine["nic"][0]["ipaddress"]}],
                    "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "", "lastHeartbeatTime": now(), "lastTransitionTime": now()}],
                }}, "/status")
            return
        waits = [t for t in node["spec"].get("taints", []) if t["key"] != "node.kubernetes.io/not-ready"]
        if up and waits != node["spec"].get("taints", []):  # as the node lifecycle controller does
            try:  # a list is replaced whole: never by what was read before Karpenter changed it
                self.kube.patch("Node", name, {"metadata": {"resourceVersion": node["metadata"]["resourceVersion"]}, "spec": {"taints": waits or None}})
            except Refused:
                pass
        if is_true(node, "Ready") != up:
            others = [c for c in node["status"]["conditions"] if c["type"] != "Ready"]
            ready = {"type": "Ready", "status": "True" if up else "Unknown", "reason": "Kubelet", "message": "", "lastHeartbeatTime": now(), "lastTransitionTime": now()}
            self.kube.patch("Node", name, {"status": {"conditions": others + [ready]}}, "/status")

    def controller(self, pods):
        for app, (count, spec) in list(self.wanted.items()):
            mine = [p for p in pods if p["metadata"]["labels"].get("app") == app]
            owner = self.owner(app) if count > len(mine) else None
            for _ in range(count - len(mine)):
                self.serial += 1
                pods.append(self.kube.create({
                    "apiVersion": "v1", "kind": "Pod",
                    "metadata": {"name": f"{app}-{self.serial}", "namespace": "default", "labels": {"app": app}, "ownerReferences": [owner]},
                    "spec": json.loads(json.dumps(spec)),
                }))
            if len(mine) > count:
                waiting_first = sorted(mine, key=lambda p: (bool(p["spec"].get("nodeName")), p["metadata"]["name"]))
                for pod in waiting_first[:len(mine) - count]:
                    self.kube.delete("Pod", pod["metadata"]["name"], gracePeriodSeconds=0)

    def owner(self, app):
        """Pods without an owner that exists are collected; this one keeps no pods itself."""
        found = self.kube.get("ReplicaSet", app) or self.kube.create({
            "apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": app, "namespace": "default"},
            "spec": {"replicas": 0, "selector": {"matchLabels": {"app": app}},
                     "template": {"metadata": {"labels": {"app": app}}, "spec": {"containers": [{"name": "c", "image": "x"}]}}}})
        return {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": app, "uid": found["metadata"]["uid"], "controller": True}

    def schedule(self, pods, nodes):
        used = {}
        for pod in pods:
            if pod["spec"].get("nodeName"):
                used.setdefault(pod["spec"]["nodeName"], []).append(pod)
        for pod in pods:
            if pod["spec"].get("nodeName"):
                if pod.get("status", {}).get("phase") != "Running" and pod["spec"]["nodeName"] in nodes:
                    self.runs(pod["metadata"]["name"])
                continue
            for name, node in sorted(nodes.items()):
                if self.fits(pod, node, used.get(name, [])):
                    body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod["metadata"]["name"]}, "target": {"kind": "Node", "name": name}}
                    self.kube.request("POST", f"{PATHS['Pod']}/{pod['metadata']['name']}/binding", body)
                    used.setdefault(name, []).append(pod)
                    self.runs(pod["metadata"]["name"])
                    break
            else:
                if not condition(pod, "PodScheduled"):
                    self.kube.patch("Pod", pod["metadata"]["name"], {"status": {"conditions": [
                        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node", "lastTransitionTime": now()}]}}, "/status")

    def runs(self, name):
        self.kube.patch("Pod", name, {"status": {"phase": "Running", "startTime": now(), "conditions": [
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": now()}, {"type": "Ready", "status": "True", "lastTransitionTime": now()}]}}, "/status")

    @staticmethod
    def fits(pod, node, others):
        if node["metadata"].get("deletionTimestamp") or not is_true(node, "Ready"):
            return False
        if any(t["effect"] in ("NoSchedule", "NoExecute") for t in node["spec"].get("taints", [])):
            return False
        labels = node["metadata"]["labels"]
        if any(labels.get(k) != v for k, v in pod["spec"].get("nodeSelector", {}).items()):
            return False
        alone = pod["spec"].get("affinity")
        if alone and any(o["metadata"]["labels"]["app"] == pod["metadata"]["labels"]["app"] for o in others):
            return False
        asked = lambda p: sum(quantity(c.get("resources", {}).get("requests", {}).get("cpu", "0")) for c in p["spec"]["containers"])
        memory = lambda p: sum(quantity(c.get("resources", {}).get("requests", {}).get("memory", "0")) for c in p["spec"]["containers"])
        room = node["status"].get("allocatable", {})
        return (asked(pod) + sum(map(asked, others)) <= quantity(room.get("cpu", "0"))
                and memory(pod) + sum(map(memory, others)) <= quantity(room.get("memory", "0")))


def quantity(text):
    for suffix, factor in (("m", 0.001), ("Ki", 2**10), ("Mi", 2**20), ("Gi", 2**30)):
        if text.endswith(suffix):
            return float(text[:-len(suffix)]) * factor
    return float(text)
