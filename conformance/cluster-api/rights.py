"""Karpenter with exactly the rights that are handed out: those the chart renders, and in a management cluster of its own those of
examples/cluster-api/rbac-management.yaml. Nothing it asks may be refused."""

import json
import os
import subprocess

HERE = os.path.dirname(os.path.abspath(__file__))
ACCOUNT = "system:serviceaccount:kube-system:"
# What `run` has the chart rendered for; every scenario has a Cluster of its own.
NAMESPACE, CLUSTER = "scenario-namespace", "scenario-cluster"


def objects(path):
    """The objects of a YAML file, by way of kubectl."""
    command = ["kubectl", "create", "--dry-run=client", "--validate=false", "-o", "json", "-f", path]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    found = []
    while text:
        item, end = json.JSONDecoder().raw_decode(text)
        found += item["items"] if item["kind"] == "List" else [item]
        text = text[end:].lstrip()
    return found


def restrict(world, chart):
    """Takes away what the control plane gave Karpenter's account and gives it what the chart renders."""
    world.roles, world.hub_roles, world.of_each = [], [], []
    for api in {id(world.api): world.api, id(world.hub): world.hub}.values():
        api.delete("ClusterRoleBinding", "realcluster-controllers")
        for name in ("kwok", "capi"):
            subject = {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": ACCOUNT + name}
            if not api.exists("ClusterRoleBinding", name):
                api.create({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name},
                            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
                            "subjects": [subject]})
    for item in objects(chart):
        if item["kind"] in ("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"):
            item["metadata"].setdefault("namespace", "kube-system") if "Cluster" not in item["kind"] else None
            world.roles.append(item)
    # What is said of one Cluster is handed out with it, also the lease whose name has the Cluster's.
    lists = lambda item: NAMESPACE in json.dumps(item)
    mine = {(i["metadata"]["namespace"], i["metadata"]["name"]) for i in world.roles if i["kind"] == "Role" and lists(i)}
    for item in world.roles:
        of_each = (item["metadata"].get("namespace"), item["metadata"]["name"]) in mine
        world.of_each.append(item) if of_each else world.home.create(item)


def enter(world, namespace, cluster):
    """What Karpenter may do for one Cluster: in its namespace."""
    for item in world.of_each:
        item = json.loads(json.dumps(item).replace(NAMESPACE, namespace).replace(CLUSTER, cluster))
        if item["metadata"]["namespace"] != namespace:
            item["metadata"]["name"] += "-" + namespace
            if "roleRef" in item:
                item["roleRef"]["name"] += "-" + namespace
        world.home.create(item)
    if world.joined or world.arguments.inside:
        return
    for item in objects(f"{HERE}/../../examples/cluster-api/rbac-management.yaml"):
        for subject in item.get("subjects", []):
            subject["namespace"] = "kube-system"
        if item["kind"].startswith("Cluster"):
            # Of all Clusters, and in no namespace.
            item["metadata"].pop("namespace", None)
            if world.hub.exists(item["kind"], item["metadata"]["name"]):
                continue
        else:
            item["metadata"]["namespace"] = namespace
        world.hub.create(item)
        known = {role["metadata"]["name"] for role in world.hub_roles}
        if item["kind"].endswith("Role") and item["metadata"]["name"] not in known:
            world.hub_roles.append(item)


def judge(world):
    """Compares what was granted with what was asked, in each cluster."""
    bad = False
    if world.arguments.inside:
        sides = [("inside", world.roles, world.hub_dir)]
    elif world.joined:
        sides = [("joined", world.roles, world.dir)]
    else:
        sides = [("workload", world.roles, world.dir), ("management", world.hub_roles, world.hub_dir)]
    for side, roles, directory in sides:
        path = f"{world.arguments.out}/{side}-roles.json"
        json.dump({"items": roles}, open(path, "w"))
        print(f"rights in the {side} cluster:", flush=True)
        reasons = f"{HERE}/../rbac/cluster-api-{side}.json"
        bad |= subprocess.run([f"{HERE}/../rbac/compare", path, f"{directory}/log/audit.log", reasons]).returncode != 0
    return bad
