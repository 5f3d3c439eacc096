//! A clock that leaps ahead may be wrong: nothing is deleted for its age before it has been believed for a while.

use std::time::Duration;

use serde_json::json;

use crate::disruption::{add_node, going, rig_with};
use crate::objects::{claim, fresh_claim, node_pool, pod_on};
use crate::rig::Rig;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: i64 = 3600;

/// Has Karpenter look at a claim.
async fn touch(rig: &Rig, name: &str, what: &str) {
    rig.patch(
        &claim(name, "default", 1),
        json!({"metadata": {"annotations": {"example.com/touched": what}}}),
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_does_not_expire_by_a_clock_that_is_set_right_again() {
    let rig = rig_with(node_pool("default"), &[]).await;
    add_node(&rig, "a", 1, json!({"spec": {"expireAfter": "2h"}})).await;
    rig.create(pod_on("a", "p", "900m")).await;
    rig.jump(3 * HOUR);
    touch(&rig, "a", "ahead").await;
    rig.pass(30 * SECOND).await;
    assert_eq!(going(&rig, &["a"]), 0, "the clock is doubted");
    rig.jump(-3 * HOUR);
    rig.pass(300 * SECOND).await;
    assert_eq!(going(&rig, &["a"]), 0, "it was wrong");
    rig.jump(3 * HOUR);
    touch(&rig, "a", "ahead again").await;
    rig.pass(65 * SECOND).await;
    assert_eq!(going(&rig, &["a"]), 1, "it is believed");
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_not_given_up_by_a_clock_that_is_set_right_again() {
    let rig = Rig::quiet(&[]).await;
    rig.create(fresh_claim("c")).await;
    rig.pass(5 * SECOND).await;
    rig.jump(HOUR);
    touch(&rig, "c", "ahead").await;
    rig.pass(30 * SECOND).await;
    assert_eq!(going(&rig, &["c"]), 0, "the clock is doubted");
    rig.jump(-HOUR);
    rig.pass(300 * SECOND).await;
    assert_eq!((going(&rig, &["c"]), rig.provider.launches()), (0, 1), "it has fifteen minutes");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_disrupted_until_a_clock_set_ahead_is_believed() {
    let rig = rig_with(node_pool("default"), &[("a", 1)]).await;
    rig.jump(HOUR);
    rig.pass(58 * SECOND).await;
    assert_eq!(going(&rig, &["a"]), 0);
    rig.eventually("the empty node goes", |rig| going(rig, &["a"]) == 1).await;
}
