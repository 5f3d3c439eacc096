//! The queue under paused time.

use proptest::prelude::*;

use super::*;
use crate::rate_limit::{Exponential, unspecified};

fn queue() -> WorkQueue<&'static str> {
    WorkQueue::new(unspecified(), QueueMetrics::none())
}

fn drain(queue: &WorkQueue<&'static str>) -> Vec<&'static str> {
    std::iter::from_fn(|| queue.try_get().map(|(key, _)| key)).collect()
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[tokio::test(start_paused = true)]
async fn items_come_out_in_the_order_they_were_added_and_once_each() {
    let queue = queue();
    for key in ["b", "a", "b", "c", "a"] {
        queue.add(key);
    }
    assert_eq!(queue.len(), 3);
    assert_eq!(drain(&queue), ["b", "a", "c"]);
    assert!(queue.is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_item_in_work_is_not_handed_out_again_until_it_is_done() {
    let queue = queue();
    queue.add("a");
    assert_eq!(queue.get().await, Some(("a", 0)));
    queue.add("a");
    queue.add("b");
    assert_eq!(drain(&queue), ["b"]);
    assert_eq!(queue.len(), 1, "it is ready all the same");
    queue.done(&"a");
    assert_eq!(drain(&queue), ["a"]);
    queue.done(&"a");
    assert!(drain(&queue).is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_item_added_during_its_work_keeps_its_place_before_later_ones() {
    let queue = queue();
    queue.add("a");
    assert!(queue.try_get().is_some());
    queue.add("a");
    queue.add("b");
    queue.done(&"a");
    assert_eq!(drain(&queue), ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn a_higher_priority_goes_first_and_lifts_an_item_to_the_end_of_its_new_class() {
    let queue = queue();
    let low = Add { priority: LOW_PRIORITY, ..Add::default() };
    for key in ["a", "b", "c"] {
        queue.add_with(key, low);
    }
    queue.add("d");
    queue.add("a");
    queue.add_with("d", low);
    assert_eq!(drain(&queue), ["d", "a", "b", "c"]);
}

#[tokio::test(start_paused = true)]
async fn an_earlier_add_brings_a_waiting_item_forward_and_a_later_one_does_not_put_it_off() {
    let queue = queue();
    queue.add_after("a", ms(500));
    queue.add_after("a", ms(900));
    queue.add_after("b", ms(800));
    queue.add_after("b", ms(100));
    assert_eq!((queue.len(), queue.waiting()), (0, 2));
    let started = Instant::now();
    assert_eq!(queue.get().await, Some(("b", 0)));
    assert_eq!(started.elapsed(), ms(100));
    assert_eq!(queue.get().await, Some(("a", 0)));
    assert_eq!(started.elapsed(), ms(500));
    queue.add_after("c", ms(500));
    queue.add("c");
    assert_eq!(drain(&queue), ["c"]);
    tokio::time::sleep(ms(1000)).await;
    assert!(drain(&queue).is_empty(), "the delayed add was the same item");
}

#[tokio::test(start_paused = true)]
async fn delayed_items_of_one_moment_keep_their_order() {
    let queue = queue();
    for key in ["z", "y", "x"] {
        queue.add_after(key, ms(10));
    }
    queue.add_after("w", ms(9));
    tokio::time::sleep(ms(20)).await;
    queue.add("v");
    assert_eq!(drain(&queue), ["w", "z", "y", "x", "v"], "what fell due goes before what is added after");
}

#[tokio::test(start_paused = true)]
async fn failures_are_spaced_out_until_forgotten() {
    let queue = WorkQueue::new(Box::new(Exponential::new(ms(5), ms(1000))), QueueMetrics::none());
    let mut waits = Vec::new();
    for _ in 0..4 {
        let started = Instant::now();
        queue.add_rate_limited("a");
        queue.get().await;
        waits.push(started.elapsed().as_millis());
        queue.done(&"a");
    }
    assert_eq!(waits, [5, 10, 20, 40]);
    assert_eq!(queue.num_requeues(&"a"), 4);
    queue.forget(&"a");
    assert_eq!(queue.num_requeues(&"a"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_getter_wakes_for_an_add_and_for_shut_down() {
    let queue = queue();
    let getter = tokio::spawn({
        let queue = queue.clone();
        async move { (queue.get().await, queue.get().await, queue.get().await) }
    });
    tokio::task::yield_now().await;
    queue.add_after("far", Duration::MAX);
    queue.add("near");
    tokio::time::sleep(ms(1)).await;
    queue.shut_down();
    queue.add("too late");
    assert_eq!(getter.await.expect("no panic"), (Some(("near", 0)), None, None));
}

proptest! {
    /// Whatever is done to a queue: nothing is handed out while in work, and nothing added is lost.
    #[test]
    fn no_item_is_lost_or_worked_on_twice(steps in prop::collection::vec((0_u8..5, 0_u8..4, 0_u64..30), 1..80)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async move {
            let queue: WorkQueue<u8> = WorkQueue::new(unspecified(), QueueMetrics::none());
            let mut working = BTreeSet::new();
            let mut owed = BTreeSet::new();
            for (step, key, wait) in steps {
                match step {
                    0 => { queue.add(key); owed.insert(key); }
                    1 => { queue.add_after(key, ms(wait)); owed.insert(key); }
                    2 => { queue.add_with(key, Add { priority: wait as i32 - 15, ..Add::default() }); owed.insert(key); }
                    3 => if let Some((got, _)) = queue.try_get() {
                        assert!(working.insert(got), "{got} was handed out twice");
                        assert!(owed.remove(&got), "{got} was not owed");
                    },
                    _ => { if working.remove(&key) { queue.done(&key); } tokio::time::sleep(ms(wait)).await; }
                }
            }
            for key in working { queue.done(&key); }
            tokio::time::sleep(ms(60)).await;
            while let Some((got, _)) = queue.try_get() { assert!(owed.remove(&got)); queue.done(&got); }
            assert!(owed.is_empty(), "lost: {owed:?}");
        });
    }
}
