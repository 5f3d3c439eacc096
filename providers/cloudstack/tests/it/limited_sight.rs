//! What is not told to everybody: limits, capabilities, tariffs; and refusals that say more than they mean.

use karpenter_api::conditions::HasConditions as _;
use karpenter_cloudprovider::provider::CloudProvider as _;
use karpenter_sim::cloudstack::faults::{Fault, Trouble};
use serde_json::json;

use crate::cloud::{World, seconds, spec};

fn denied(command: &str) -> Fault {
    let text = format!("The API [{command}] does not exist or is not available for the account.");
    Fault::times(command, 10_000, Trouble::Fail(432, 9999, text))
}

fn available(types: &[karpenter_engine::instance_type::InstanceType]) -> Vec<&str> {
    let has_any =
        |it: &&karpenter_engine::instance_type::InstanceType| it.offerings.iter().any(|o| o.available);
    types.iter().filter(has_any).map(|it| &*it.name).collect()
}

#[tokio::test(start_paused = true)]
async fn who_may_not_see_limits_launches_and_says_that_they_are_not_known() {
    let world = World::new().await;
    world.cloud.inject(denied("listProjects"));
    let (_, class) = world.project();
    let class = world.class("default", class).await;
    let quota = class.condition("QuotaAvailable").expect("a condition");
    assert_eq!((quota.status.as_str(), quota.reason()), ("Unknown", "LimitsNotShown"));
    assert_eq!(class.condition("Ready").expect("a condition").status.as_str(), "True");
    world.launch(&world.claim("np-a", json!({"cpu": "1"}))).await.expect("a machine");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_that_names_soft_groups_is_of_the_one_type_only() {
    for affinity in ["softHostAntiAffinity", "hostAffinity", "hostAntiAffinity"] {
        let world = World::new().await;
        let mut class = spec();
        class["affinity"] = json!({"type": affinity});
        world.class("default", class).await;
        let text = "No destination found for a deployment, Please check the affinity groups provided, there may not be sufficient capacity to follow them";
        world.cloud.inject(Fault::once("deployVirtualMachine", Trouble::Fail(533, 4350, text.into())));
        // Nothing is in the group yet, so even a strict one keeps nobody from any host.
        world.launch(&world.claim("np-a", json!({"cpu": "1"}))).await.expect("a machine of the other type");
        let types = world.provider.get_instance_types(&world.pool("default")).await.expect("types");
        assert_eq!(available(&types).len(), 1, "{affinity}: the refused one is left out, no other");
    }
}

#[tokio::test(start_paused = true)]
async fn a_limit_on_what_bears_a_tag_says_nothing_of_what_does_not() {
    let world = World::new().await;
    let text = "Maximum amount of resources of Type = 'cpu', tag = 'gold' for Account Name = karp in Domain Id = 2 is exceeded: Account Resource Limit = 4, Current Account Resource Amount = 4, Current Account Resource Reservation = 0, Requested Resource Amount = 2.";
    world.cloud.inject(Fault::once("deployVirtualMachine", Trouble::Fail(535, 4370, text.into())));
    world.launch(&world.claim("np-a", json!({"cpu": "1"}))).await.expect("a machine of the other type");
    let told = world.told("QuotaExceeded");
    assert!(told[0].contains("cpu (tag: gold)"), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn tariffs_that_cannot_be_read_now_are_not_taken_for_none() {
    let world = World::new().await;
    world.cloud.set_tariffs(144.0, 0.72);
    world.cloud.add_tariff(json!({"usageType": {"odd": true}, "tariffValue": []}));
    let mut class = spec();
    class["pricing"] = json!({"quotaTariff": "Use"});
    let pool = world.pool("default");
    world.cloud.inject(Fault::times("quotaTariffList", 10, Trouble::Fail(530, 9999, "database".into())));
    world.class("default", class).await;
    assert!(world.provider.get_instance_types(&pool).await.is_err(), "by which prices?");
    world.cloud.heal();
    seconds(61).await;
    let types = world.provider.get_instance_types(&pool).await.expect("types");
    let prices: Vec<f64> = types.iter().flat_map(|it| &it.offerings).map(|o| o.price).collect();
    assert!(prices.iter().all(|price| (0.2..0.3).contains(price)), "as the tariffs say: {prices:?}");
}

#[tokio::test(start_paused = true)]
async fn sizes_of_a_custom_offering_have_prices_of_their_own() {
    let world = World::new().await;
    let mut class = spec();
    class["serviceOfferingSelectorTerms"] = json!([{"name": "k8s.custom", "minCPU": 2, "maxCPU": 4}]);
    class["pricing"] = json!({"overrides": {"k8s.custom*": "0.5", "k8s.custom.2c-4g": "0.1"}});
    world.class("default", class).await;
    let types = world.provider.get_instance_types(&world.pool("default")).await.expect("types");
    let price = |name: &str| types.iter().find(|it| &*it.name == name).map(|it| it.offerings[0].price);
    assert_eq!(price("k8s.custom.2c-4g"), Some(0.1), "{:?}", available(&types));
    let others: Vec<f64> =
        types.iter().filter(|it| &*it.name != "k8s.custom.2c-4g").map(|it| it.offerings[0].price).collect();
    assert!(!others.is_empty() && others.iter().all(|price| *price == 0.5), "{others:?}");
}
