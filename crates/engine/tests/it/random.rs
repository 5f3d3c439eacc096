//! Clusters made of everything at once, from a number.

use karpenter_engine::Snapshot;
use karpenter_engine::labels::{CAPACITY_TYPE, HOSTNAME, ZONE};
use karpenter_engine::pod::{Pod, WhenUnsatisfiable};
use karpenter_engine::resources::{Amount, CPU};
use karpenter_engine::taints::{Taint, Toleration};

use super::cluster::{ZONES, node, pod, pool, snapshot, spread, term, types, with};

/// A small deterministic source of numbers.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % sides
    }

    fn one_of<'a>(&mut self, choices: &[&'a str]) -> &'a str {
        choices[self.roll(choices.len() as u64) as usize]
    }
}

fn random_pod(number: u64, dice: &mut Dice) -> Pod {
    let apps = ["web", "db", "job"];
    let keys = [ZONE, HOSTNAME, CAPACITY_TYPE];
    let app = dice.one_of(&apps);
    let cpu = [100, 300, 900, 2500, 40_000][dice.roll(5) as usize];
    with(pod(&format!("p{number:03}"), app, cpu), |spec| {
        for _ in 0..dice.roll(3) {
            let (other, key) = (dice.one_of(&apps), dice.one_of(&keys));
            match dice.roll(7) {
                0 => spec.topology_spread.push(spread(other, key, WhenUnsatisfiable::DoNotSchedule)),
                1 => spec.topology_spread.push(spread(other, key, WhenUnsatisfiable::ScheduleAnyway)),
                2 => spec.pod_affinity.required.push(term(other, key)),
                3 => spec.pod_affinity.preferred.push((dice.roll(100) as i32, term(other, key))),
                4 => spec.pod_anti_affinity.required.push(term(other, key)),
                5 => spec.pod_anti_affinity.preferred.push((dice.roll(100) as i32, term(other, key))),
                _ => spec.node_selector = [(ZONE, dice.one_of(&ZONES))].into_iter().collect(),
            }
        }
        if dice.roll(3) == 0 {
            spec.tolerations.push(Toleration {
                key: "team".into(),
                operator: "Exists".into(),
                value: "".into(),
                effect: "".into(),
                seconds: None,
            });
        }
    })
}

/// The cluster with this number.
pub(crate) fn cluster(seed: u64) -> Snapshot {
    let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let count = 5 + dice.roll(80);
    let mut cluster = snapshot((0..count).map(|i| random_pod(i, &mut dice)).collect());
    let list = types();
    if dice.roll(2) == 0 {
        let mut tainted = pool("tainted", &list);
        let effect = dice.one_of(&["NoSchedule", "PreferNoSchedule"]);
        tainted.taints = vec![Taint { key: "team".into(), value: "".into(), effect: effect.into() }];
        tainted.weight = dice.roll(3) as i32;
        cluster.node_pools.push(tainted);
    }
    if dice.roll(3) == 0 {
        cluster.node_pools[0].limits = [(CPU, Amount::units(dice.roll(100) as i64))].into_iter().collect();
    }
    for i in 0..dice.roll(6) {
        cluster.nodes.push(node(&format!("n{i}"), dice.one_of(&ZONES), 1 + dice.roll(8) as i64));
    }
    cluster
}
