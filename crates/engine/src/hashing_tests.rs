//! No decision depends on how tables hash, or on how many threads decide at once.

use std::sync::Barrier;
use std::thread;

use crate::hashing::with_seed;
use crate::{Snapshot, SolveOptions, solve};

#[path = "../tests/it/cluster.rs"]
#[expect(dead_code, reason = "only some of the clusters are needed here")]
mod cluster;
#[path = "../tests/it/random.rs"]
mod random;

fn decided(cluster: &Snapshot) -> String {
    let plan = solve(cluster, &SolveOptions { explain: true, ..SolveOptions::default() });
    format!("{:?}", (plan.new_claims, plan.existing_nodes, plan.pod_errors, plan.ignored_pods))
}

#[test]
fn every_hash_seed_gives_the_same_bytes() {
    for number in 1..30 {
        let cluster = random::cluster(number);
        let usual = decided(&cluster);
        for seed in [1, 0xDEAD_BEEF, u64::MAX] {
            // A clone of the cluster also has its strings elsewhere, and some tables go by address.
            assert!(with_seed(seed, || decided(&cluster)) == usual, "cluster {number}, seed {seed}");
        }
    }
}

#[test]
fn one_two_and_eight_threads_at_once_give_the_same_bytes() {
    for number in 1..8 {
        let cluster = random::cluster(number);
        let usual = decided(&cluster);
        for threads in [1, 2, 8] {
            let together = Barrier::new(threads);
            thread::scope(|scope| {
                let running: Vec<_> = (0..threads)
                    .map(|_| {
                        scope.spawn(|| {
                            together.wait();
                            decided(&cluster)
                        })
                    })
                    .collect();
                for thread in running {
                    assert!(thread.join().expect("decided") == usual, "cluster {number}, {threads} threads");
                }
            });
        }
    }
}
