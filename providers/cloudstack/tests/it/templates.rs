//! Which templates machines are made of, and what those bring with them: a hypervisor, user data, a disk.

use karpenter_api::ConditionStatus;
use karpenter_api::conditions::HasConditions as _;
use karpenter_cloudprovider::provider::CloudProvider;
use serde_json::{Value, json};

use crate::cloud::{World, seconds, spec};

#[tokio::test(start_paused = true)]
async fn the_template_of_another_architecture_may_deny_user_data_too() {
    let world = World::new().await;
    let arm = json!({"name": "CentOS arm", "arch": "aarch64", "created": "2026-11-01T00:00:00+0000"});
    world.cloud.add("template", arm);
    world.cloud.edit("template", "CentOS arm", |template| template["userdatapolicy"] = "DENYOVERRIDE".into());
    seconds(3601).await;
    let class = world.class("default", spec()).await;
    assert_eq!(class.condition("TemplatesReady").expect("a condition").reason(), "TemplateDeniesUserData");
    let newer = json!({"name": "CentOS arm 2", "arch": "aarch64", "created": "2026-11-02T00:00:00+0000",
        "userdatapolicy": null});
    world.cloud.add("template", newer);
    seconds(3601).await;
    let class = world.class("default", spec()).await;
    assert_eq!(
        class.condition_status("TemplatesReady"),
        ConditionStatus::True,
        "no machine is made of the older"
    );
}

#[tokio::test(start_paused = true)]
async fn a_template_of_another_hypervisor_than_the_class_names_is_not_used() {
    let world = World::new().await;
    let own = world.cloud.id_of("template", "CentOS 5.6 (64-bit) no GUI (Simulator)").unwrap();
    let newer = |name: &str, hypervisor: &str| json!({"name": name, "hypervisor": hypervisor, "created": "2026-11-16T00:00:00+0000"});
    let other = world.cloud.add("template", newer("CentOS other", "KVM"));
    seconds(3601).await;
    let mut class = spec();
    world.class("default", class.clone()).await;
    assert_eq!(world.node("np-a").await.image_id, other, "the newest, if nobody says");
    class["hypervisor"] = "simulator".into();
    let status = world.class("default", class.clone()).await.status.clone().unwrap_or_default();
    let used: Vec<String> = status.templates.unwrap_or_default().into_iter().map(|it| it.id).collect();
    assert_eq!(used, std::slice::from_ref(&own));
    assert_eq!(world.node("np-b").await.image_id, own, "the server would refuse the newest");
    let open = world.cloud.add("template", newer("CentOS open", "None"));
    seconds(301).await;
    assert_eq!(world.node("np-c").await.image_id, open, "that leaves it open");
    class["hypervisor"] = "VMware".into();
    class["templateSelectorTerms"] = json!([{"name": "CentOS other"}]);
    let class = world.class("default", class).await;
    assert_eq!(class.condition_status("TemplatesReady"), ConditionStatus::False);
    let message = class.condition("TemplatesReady").expect("a condition").message();
    assert!(message.contains("VMware"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn a_root_disk_is_as_large_as_the_template_of_its_zone_at_least() {
    let world = World::new().await;
    let zone = world.cloud.add("zone", json!({"name": "zone-2"}));
    world.cloud.add("network", json!({"name": "k8s-net", "zoneid": zone, "zonename": "zone-2"}));
    world.cloud.edit("template", "CentOS 5.6 (64-bit) no GUI (Simulator)", |template| {
        template["crossZones"] = false.into();
    });
    let elsewhere = json!({"name": "CentOS", "zoneid": zone, "zonename": "zone-2", "size": 50i64 << 30});
    world.cloud.add("template", elsewhere);
    let gib = async |zone: &str, change: &dyn Fn(&mut Value)| {
        seconds(3601).await;
        let mut class = spec();
        class["zone"] = zone.into();
        class["serviceOfferingSelectorTerms"] = json!([{"name": "k8s.small"}]);
        change(&mut class);
        world.class("default", class).await;
        let types = world.provider.get_instance_types(&world.pool("default")).await.expect("types");
        let disk = types[0].capacity.get("ephemeral-storage").expect("a disk").as_units_ceil();
        // Less what the file system keeps.
        (disk * 100 / 95) >> 30
    };
    let as_is = |_: &mut Value| {};
    let close = |gib: i128, to: i128| assert!((to - 1..=to).contains(&gib), "{gib} is not {to}");
    close(gib("sim-zone-1", &as_is).await, 2);
    close(gib("zone-2", &as_is).await, 50);
    close(gib("sim-zone-1", &|class| class["zones"] = json!(["zone-2"])).await, 2);
    world.cloud.edit("serviceoffering", "k8s.small", |offering| offering["rootdisksize"] = 10.into());
    close(gib("sim-zone-1", &as_is).await, 10);
    close(gib("zone-2", &as_is).await, 50);
    // The least that any machine of the zone has.
    let arm = json!({"name": "CentOS arm", "arch": "aarch64", "zoneid": zone, "zonename": "zone-2", "size": 30i64 << 30});
    world.cloud.add("template", arm);
    close(gib("zone-2", &as_is).await, 30);
    world.cloud.edit("serviceoffering", "k8s.small", |offering| offering["rootdisksize"] = 0.into());
    for name in ["CentOS", "CentOS arm"] {
        world.cloud.edit("template", name, |template| template["size"] = json!(null));
    }
    close(gib("zone-2", &as_is).await, 20);
}
