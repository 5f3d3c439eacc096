"""Runs scenarios against Cluster API's real controllers and prints what became of each. Started by `run`, in the cluster's network namespace."""

import argparse
import json
import os
import signal
import sys
import time
import traceback

import faults
import load
import machine_mode
import rights
import rollouts
import safety
import scaling
import topology
from world import Failed, World

MODULES = [scaling, rollouts, safety, topology, machine_mode, faults, load]


def scenarios():
    found = {}
    for module in MODULES:
        for name, value in vars(module).items():
            if callable(value) and getattr(value, "__module__", "") == module.__name__ and value.__doc__ and not name.startswith("_"):
                found[name] = value
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", required=True)
    parser.add_argument("--hub-dir")
    parser.add_argument("--bin", required=True)
    parser.add_argument("--config", required=True)
    parser.add_argument("--karpenter", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--patience", type=float, default=3.0, help="by how much every time limit is stretched")
    parser.add_argument("--count", type=int, default=200, help="how many Machines the load scenarios go up to")
    parser.add_argument("--keep-going", action="store_true")
    parser.add_argument("--rights", help="the rendered chart whose rights Karpenter gets")
    parser.add_argument("--inside", action="store_true", help="Karpenter runs in the management cluster")
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    known = scenarios()
    unknown = [name for name in arguments.names if name not in known]
    if unknown:
        sys.exit(f"unknown: {unknown}; there are {', '.join(known)}")
    os.makedirs(arguments.out, exist_ok=True)
    # What was started is stopped, also when the run is.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit("stopped"))
    world = World(arguments)
    rows, failed = {}, []
    try:
        world.start()
        if arguments.rights:
            rights.restrict(world, arguments.rights)
        for name in arguments.names or list(known):
            if world.joined and "needs --hub" in known[name].__doc__:
                continue
            print(f"{name}: {known[name].__doc__}", flush=True)
            began = time.time()
            rig = None
            before = len(world.karpenters)
            try:
                rig = known[name](world)
                rows[name] = dict(rig.row(), what=known[name].__doc__, facts=rig.facts)
                print(f"  ok in {time.time() - began:.0f} s; {json.dumps({k: v for k, v in rows[name].items() if k not in ('what', 'facts')}, ensure_ascii=False)}", flush=True)
                for note in getattr(rig, "notes", []):
                    print("  " + note, flush=True)
            except Exception as error:
                failed.append(name)
                print(f"  FAILED after {time.time() - began:.0f} s: {error}", flush=True)
                if not isinstance(error, Failed):
                    traceback.print_exc()
                show(world, name)
                if not arguments.keep_going:
                    break
            if rig:
                rig.end()
            else:
                abandoned(world, name)
        if arguments.rights and rights.judge(world):
            failed.append("rights")
    finally:
        world.stop()
        json.dump(rows, open(f"{arguments.out}/rows.json", "w"), indent=1, ensure_ascii=False, default=sorted)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def show(world, name):
    """How things stood when a scenario failed."""
    for watch in (world.deployments, world.machines, world.claims):
        for value in watch.objects.values():
            meta = value["metadata"]
            told = {k: v for k, v in meta.get("annotations", {}).items() if "karpenter" in k or "delete-machine" in k}
            conditions = [(c["type"], c["status"], c.get("reason"), c.get("message", "")[:90]) for c in value.get("status", {}).get("conditions", [])
                          if c["status"] != "True"]
            print("   ", watch.kind, meta.get("namespace", ""), meta["name"], "going" if meta.get("deletionTimestamp") else "",
                  value["spec"].get("replicas", ""), told, conditions[:4])
    log = open(f"{world.arguments.out}/karpenter.log").read().splitlines()[-25:]
    print("\n".join(log))


def abandoned(world, name):
    """Clears up what a failed scenario left, so that the next one starts clean."""
    from rig import Rig
    rig = Rig.__new__(Rig)
    name = name.replace("_", "-")
    rig.world, rig.name, rig.namespace, rig.hub, rig.api = world, name, name, world.hub, world.api
    rig.end()


if __name__ == "__main__":
    main()
