//! What is remembered from pod to pod changes how long a decision takes, never the decision.

use karpenter_engine::{SolveOptions, solve};

use crate::cluster::outcome;
use crate::random;

#[test]
fn remembering_and_asking_anew_decide_the_same() {
    for seed in 1..120 {
        let cluster = random::cluster(seed);
        let remembering = solve(&cluster, &SolveOptions::default());
        let anew = solve(&cluster, &SolveOptions { caching: false, ..SolveOptions::default() });
        assert_eq!(outcome(&remembering), outcome(&anew), "seed {seed}");
    }
}

#[test]
fn the_order_of_the_lists_does_not_matter() {
    for seed in 1..40 {
        let cluster = random::cluster(seed);
        let mut shuffled = cluster.clone();
        shuffled.pods.reverse();
        shuffled.nodes.reverse();
        shuffled.node_pools.reverse();
        let options = SolveOptions::default();
        assert_eq!(outcome(&solve(&cluster, &options)), outcome(&solve(&shuffled, &options)), "seed {seed}");
    }
}

#[test]
fn every_pod_is_accounted_for_exactly_once() {
    for seed in 1..80 {
        let cluster = random::cluster(seed);
        let plan = solve(&cluster, &SolveOptions::default());
        let mut names: Vec<&str> = plan
            .new_claims
            .iter()
            .flat_map(|c| &c.pods)
            .chain(plan.existing_nodes.iter().flat_map(|n| &n.pods))
            .map(|p| p.pod.name.as_ref())
            .chain(plan.pod_errors.iter().map(|e| e.pod.name.as_ref()))
            .chain(plan.ignored_pods.iter().map(|i| i.pod.name.as_ref()))
            .collect();
        names.sort_unstable();
        let all: Vec<&str> = cluster.pods.iter().map(|p| p.name.as_ref()).collect();
        assert_eq!(names, all, "seed {seed}");
    }
}
