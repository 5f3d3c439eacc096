"""Runs scenarios of Karpenter on a real CloudStack server and prints what became of each."""

import argparse
import json
import os
import sys
import time
import traceback

import scenarios
from world import Failed, World


def main():
    known = {n: f for n, f in vars(scenarios).items() if callable(f) and getattr(f, "__module__", "") == "scenarios" and f.__doc__ and not n.startswith("_")}
    parser = argparse.ArgumentParser(description="Scenarios of the CloudStack provider on a server that is given; machines are made and removed there.")
    parser.add_argument("--karpenter", required=True, help="the program")
    parser.add_argument("--endpoint", required=True, help="such as http://127.0.0.1:8080/client/api")
    parser.add_argument("--key", required=True)
    parser.add_argument("--secret", required=True)
    parser.add_argument("--root-key", help="of a root administrator: for what only one can do behind a tenant's back")
    parser.add_argument("--root-secret")
    parser.add_argument("--zone", required=True)
    parser.add_argument("--network", required=True, help="a network of the tenant, by name")
    parser.add_argument("--second-network")
    parser.add_argument("--tiny-network", help="a network with few addresses")
    parser.add_argument("--template", required=True)
    parser.add_argument("--disk-offering")
    parser.add_argument("--custom-offering")
    parser.add_argument("--restart", help="a command that kills the management server and returns when it answers again")
    parser.add_argument("--save-keys", help="where to write the tenant's keys when a scenario changed them")
    parser.add_argument("--cluster", default="real")
    parser.add_argument("--patience", type=float, default=1.0)
    parser.add_argument("--out", required=True)
    parser.add_argument("--keep-going", action="store_true")
    parser.add_argument("names", nargs="*", help="of scenarios: " + ", ".join(known))
    arguments = parser.parse_args()
    unknown = [n for n in arguments.names if n not in known]
    if unknown:
        sys.exit(f"unknown: {unknown}; there are {', '.join(known)}")
    world = World(arguments)
    rows, failed = {}, []
    try:
        for name in arguments.names or known:
            print(f"{name}: {known[name].__doc__}", flush=True)
            began = time.time()
            lengths = {log: os.path.getsize(log) for log in world.logs}
            try:
                facts = known[name](world) or {}
                row = {**world.row(began, began), **facts}
                rows[name] = row
                print(f"  ok {json.dumps(row, ensure_ascii=False)}", flush=True)
            except Exception as error:
                failed.append(name)
                print(f"  FAILED after {time.time() - began:.0f} s: {error} {json.dumps(world.row(began, began), ensure_ascii=False)}", flush=True)
                if not isinstance(error, Failed):
                    traceback.print_exc()
                show(world)
                if not arguments.keep_going:
                    break
            for text, times in world.complaints(lengths).most_common(12):
                print(f"    {times}× {text}", flush=True)
            world.clear()
    finally:
        world.stop()
        json.dump(rows, open(f"{arguments.out}/rows.json", "a"), ensure_ascii=False)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def show(world):
    for kind in ("CloudStackNodeClass", "NodeClaim"):
        for value in world.kube.list(kind):
            bad = [(c["type"], c["status"], c.get("reason"), c.get("message", "")[:200]) for c in value.get("status", {}).get("conditions", []) if c["status"] != "True"]
            print("   ", kind, value["metadata"]["name"], "going" if value["metadata"].get("deletionTimestamp") else "", value.get("status", {}).get("providerID", ""), bad)
    for machine in world.machines():
        print("   ", machine["name"], machine["id"], machine["state"])
    for event in world.kube.list("Event")[-15:]:
        print("   ", event.get("type"), event.get("reason"), event.get("message", "")[:300])
    print("    play:", world.play.problems[-3:])


main()
