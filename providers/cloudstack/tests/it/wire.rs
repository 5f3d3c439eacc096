//! The client on the simulated server: what no script of answers could show.

use karpenter_provider_cloudstack::client::error::ErrorKind;
use karpenter_provider_cloudstack::client::requests;
use karpenter_provider_cloudstack::client::signature::Credentials;
use karpenter_sim::cloudstack::account::Role;
use karpenter_sim::cloudstack::faults::{Fault, Trouble};

use crate::cloud::World;

#[tokio::test(start_paused = true)]
async fn signatures_are_taken_with_odd_values_and_strict_servers_are_content() {
    let world = World::new().await;
    world.cloud.configure(|settings| settings.enforce_post = true);
    for odd in ["a b", "a+b", "a~b", "a*b", "a'b(c)!", "ü€漢", "a/b:c@d"] {
        let request = requests::list_virtual_machines_by_keyword(odd, &Default::default());
        world.client.call(&request).await.unwrap_or_else(|error| panic!("{odd}: {error}"));
    }
    let error =
        world.client.call(&requests::destroy("00000000-0000-4000-8000-000000000000", false, &[])).await;
    assert_eq!(error.expect_err("unknown").kind, ErrorKind::NotFound, "by POST, so that it got that far");
}

#[tokio::test(start_paused = true)]
async fn scenario_21_keys_are_exchanged_without_a_failed_call_and_wrong_ones_are_not_taken() {
    let world = World::new().await;
    let mut wrong = world.client.session();
    wrong.credentials = Credentials::new("new", "wrong");
    assert_eq!(world.client.probe(&wrong).await.expect_err("refused").kind, ErrorKind::Auth);
    world.client.call(&requests::list_zones()).await.expect("the old keys go on");
    world.cloud.rotate_keys("new", "secret");
    let mut right = world.client.session();
    right.credentials = Credentials::new("new", "secret");
    world.client.probe(&right).await.expect("let in");
    world.client.become_session(right);
    world.client.call(&requests::list_zones()).await.expect("the new keys");
    // A command nobody knows is not taken for wrong keys.
    let error = world.client.call(&requests::quota_tariff_list()).await.expect_err("no plug-in");
    assert_eq!(error.kind, ErrorKind::Denied);
}

#[tokio::test(start_paused = true)]
async fn keys_never_reach_an_error_or_the_debug_text() {
    let world = World::new().await;
    let account = world.cloud.account(Role::User).unwrap();
    for trouble in [Trouble::Refuse, Trouble::DropRequest, Trouble::Proxy(502), Trouble::Truncate] {
        world.cloud.inject(Fault::times("startVirtualMachine", 5, trouble));
        let error = world.client.call(&requests::start("x")).await.expect_err("trouble");
        for text in [error.to_string(), format!("{error:?}"), format!("{:?}", world.client)] {
            assert!(!text.contains(&account.api_key) && !text.contains(&account.secret_key), "{text}");
        }
        world.cloud.heal();
    }
}
