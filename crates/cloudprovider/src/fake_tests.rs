//! What the fake does when left alone, and when told otherwise.

use karpenter_api::{NodeSelectorRequirement, Operator};

use super::*;

fn require(claim: &mut NodeClaim, key: &str, operator: Operator, values: &[&str]) {
    claim.spec.requirements.push(NodeSelectorRequirement::new(key, operator, values.iter().copied()));
}

fn request(claim: &mut NodeClaim, cpu: &str) {
    let requests = BTreeMap::from([("cpu".to_owned(), Quantity::parse(cpu).expect("a quantity"))]);
    claim.spec.resources.get_or_insert_default().requests = Some(requests);
}

async fn launched(fake: &FakeProvider, claim: &NodeClaim) -> LaunchedInstance {
    match fake.create(claim).await.expect("a launch") {
        Launch::Launched(instance) => *instance,
        pending => panic!("{pending:?}"),
    }
}

#[tokio::test]
async fn it_launches_the_cheapest_that_fits_and_only_once() {
    let fake = FakeProvider::new("fake");
    let mut claim = claim("c");
    request(&mut claim, "2500m");
    require(&mut claim, labels::TOPOLOGY_ZONE, Operator::NotIn, &["test-zone-1"]);
    require(&mut claim, labels::CAPACITY_TYPE, Operator::In, &["on-demand"]);
    let instance = launched(&fake, &claim).await;
    let label = |key: &str| instance.labels.get(key).map(String::as_str);
    assert_eq!(label(labels::INSTANCE_TYPE), Some("fake-it-3"));
    assert_eq!(label(labels::TOPOLOGY_ZONE), Some("test-zone-2"));
    assert_eq!(label(labels::CAPACITY_TYPE), Some("on-demand"));
    assert_eq!(instance.allocatable["memory"].to_string(), "6Gi");
    assert_eq!(launched(&fake, &claim).await, instance, "asked again it is the same instance");
    assert_eq!((fake.launches(), fake.instances().len()), (1, 1));
    request(&mut claim, "64");
    claim.metadata.uid = Some("another".to_owned());
    assert!(matches!(fake.create(&claim).await, Err(ProviderError::InsufficientCapacity(_))));
}

#[tokio::test]
async fn deleting_twice_says_that_it_is_gone() {
    let fake = FakeProvider::new("fake");
    let mut claim = claim("c");
    launched(&fake, &claim).await.write_into(&mut claim);
    let id = claim.status.as_ref().and_then(|status| status.provider_id.clone()).expect("an id");
    assert_eq!(fake.get(&id).await.expect("there").metadata.name, claim.metadata.name);
    fake.delete(&claim).await.expect("under way");
    assert!(fake.delete(&claim).await.expect_err("gone").is_not_found());
    assert!(fake.get(&id).await.expect_err("gone").is_not_found());
}

#[tokio::test]
async fn a_slow_machine_is_pending_wakes_the_core_and_can_be_deleted_by_its_handle() {
    let fake = FakeProvider::new("fake");
    let woken = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&woken);
    fake.wake_with(LaunchWaker::new(move |key| sink.lock().expect("no panic").push(key)));
    fake.always(Method::Create, Some(Behaviour::Pending));
    let (slow, doomed) = (claim("slow"), claim("doomed"));
    assert_eq!(fake.launch_handle(&slow), None);
    for claim in [&slow, &slow, &doomed] {
        let Launch::Pending { reason, handle, .. } = fake.create(claim).await.expect("pending") else {
            panic!("too fast")
        };
        assert_eq!((reason.as_str(), fake.launch_handle(claim)), ("MachineProvisioning", Some(handle)));
    }
    assert_eq!(fake.launches(), 0);
    fake.delete(&doomed).await.expect("there is something to delete before there is a provider id");
    assert!(fake.delete(&doomed).await.expect_err("now there is not").is_not_found());
    fake.finish("slow");
    fake.finish("doomed");
    assert_eq!(*woken.lock().expect("no panic"), [ObjectKey::cluster("slow")]);
    assert_eq!(launched(&fake, &slow).await.provider_id, "fake:///1");
    assert_eq!(fake.launches(), 1);
}

#[tokio::test(start_paused = true)]
async fn it_errs_hangs_lies_and_loses_answers_as_told_and_writes_all_of_it_down() {
    let fake = FakeProvider::new("fake");
    let claim = claim("c");
    fake.next(Method::Create, Behaviour::Fail(ProviderError::other("down")));
    fake.next(Method::Create, Behaviour::LoseReply);
    assert!(fake.create(&claim).await.is_err());
    assert_eq!(fake.launches(), 0);
    assert!(fake.create(&claim).await.is_err());
    assert_eq!(fake.launches(), 1, "it was launched all the same");
    fake.next(Method::Create, Behaviour::WrongProviderId("fake:///999".to_owned()));
    assert_eq!(launched(&fake, &claim).await.provider_id, "fake:///999");
    fake.always(Method::List, Some(Behaviour::EmptyList));
    assert!(fake.list().await.expect("a lie").is_empty());
    fake.always(Method::List, None);
    assert_eq!(fake.list().await.expect("the truth").len(), 1);
    fake.next(Method::List, Behaviour::Hang);
    assert!(tokio::time::timeout(Duration::from_secs(3600), fake.list()).await.is_err());
    fake.vanish("fake:///1");
    assert!(fake.list().await.expect("the truth").is_empty());
    assert_eq!((fake.count(Method::Create), fake.count(Method::List)), (3, 4));
    assert_eq!(fake.calls()[0], (Method::Create, "c".to_owned()));
}

#[tokio::test]
async fn node_pools_may_be_offered_lists_of_their_own() {
    let fake = FakeProvider::new("fake");
    fake.offer_to("small", instance_types(1));
    let mut pool = NodePool::default();
    pool.metadata.name = Some("small".to_owned());
    assert_eq!(fake.get_instance_types(&pool).await.expect("types").len(), 1);
    pool.metadata.name = Some("other".to_owned());
    let first = fake.get_instance_types(&pool).await.expect("types");
    pool.metadata.name = Some("another".to_owned());
    let second = fake.get_instance_types(&pool).await.expect("types");
    assert!(Arc::ptr_eq(&first, &second), "the same offer is the same list");
}
