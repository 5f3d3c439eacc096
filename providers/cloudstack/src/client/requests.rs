//! Every request the provider can send, as pure functions. A test holds each command and parameter against what the real
//! server lists for role User.

use std::collections::BTreeMap;

use super::model::Tag;
use super::request::{Request, Scope};

/// What of a virtual machine is asked for: `stats` is slow and never among it.
const DETAILS: &str = "nics,servoff,tmpl,affgrp,secgrp,group";

/// What the server is and what the caller may do.
pub fn list_capabilities() -> Request {
    Request::new("listCapabilities")
}

/// The commands the caller may use.
pub fn list_apis(name: Option<&str>) -> Request {
    Request::new("listApis").maybe("name", name)
}

/// The zones the caller sees; disabled ones are hidden from tenants.
pub fn list_zones() -> Request {
    Request::new("listZones").with("available", "true")
}

/// The service offerings of a zone: some are for domains only, so whose machines they are for counts.
pub fn list_service_offerings(zone_id: &str, scope: &Scope) -> Request {
    Request::new("listServiceOfferings").with("zoneid", zone_id).within(scope)
}

/// The disk offerings of a zone.
pub fn list_disk_offerings(zone_id: &str, scope: &Scope) -> Request {
    Request::new("listDiskOfferings").with("zoneid", zone_id).within(scope)
}

/// The networks of a zone, also those without a free address: they would leave the list of whoever asks for the others.
pub fn list_networks(zone_id: &str, scope: &Scope) -> Request {
    Request::new("listNetworks").with("zoneid", zone_id).within(scope)
}

/// The templates of a zone that machines can be made of.
pub fn list_templates(zone_id: &str, scope: &Scope) -> Request {
    Request::new("listTemplates").with("templatefilter", "executable").with("zoneid", zone_id).within(scope)
}

/// The account of the caller with what is left of its limits.
pub fn list_accounts() -> Request {
    Request::new("listAccounts")
}

/// Another account with what is left of its limits, for administrators.
pub fn list_account(name: &str, domain_id: &str) -> Request {
    Request::new("listAccounts").with("name", name).with("domainid", domain_id)
}

/// A project with what is left of its limits.
pub fn list_project(id: &str) -> Request {
    Request::new("listProjects").with("id", id)
}

/// The hosts; root administrators only.
pub fn list_hosts(zone_id: &str) -> Request {
    Request::new("listHosts").with("type", "Routing").with("zoneid", zone_id)
}

/// Prices of the quota plug-in; without it the command does not exist.
pub fn quota_tariff_list() -> Request {
    Request::new("quotaTariffList")
}

/// A key pair by name.
pub fn list_ssh_key_pairs(name: &str, scope: &Scope) -> Request {
    Request::new("listSSHKeyPairs").with("name", name).within(scope)
}

/// Registered user data.
pub fn list_user_data(id: &str, scope: &Scope) -> Request {
    Request::new("listUserData").with("id", id).within(scope)
}

/// The security groups.
pub fn list_security_groups(scope: &Scope) -> Request {
    Request::new("listSecurityGroups").within(scope)
}

/// Virtual machines with a tag.
pub fn list_virtual_machines_by_tag(key: &str, value: &str, scope: &Scope) -> Request {
    Request::new("listVirtualMachines").pairs("tags", [(key, value)]).with("details", DETAILS).within(scope)
}

/// Virtual machines in whose name this occurs.
pub fn list_virtual_machines_by_keyword(keyword: &str, scope: &Scope) -> Request {
    Request::new("listVirtualMachines").with("keyword", keyword).with("details", DETAILS).within(scope)
}

/// One virtual machine.
pub fn list_virtual_machine(id: &str, scope: &Scope) -> Request {
    Request::new("listVirtualMachines").with("id", id).with("details", DETAILS).within(scope)
}

/// Virtual machines by their ids; one the server never knew is an error for all.
pub fn list_virtual_machines_by_id(ids: &[String], scope: &Scope) -> Request {
    Request::new("listVirtualMachines").list("ids", ids).with("details", DETAILS).within(scope)
}

/// The interfaces of a virtual machine. Unlike a list of machines, this is refused where the caller may not see the machine.
pub fn list_nics(virtual_machine_id: &str) -> Request {
    Request::new("listNics").with("virtualmachineid", virtual_machine_id)
}

/// The data disks of a virtual machine.
pub fn list_data_disks(virtual_machine_id: &str, scope: &Scope) -> Request {
    Request::new("listVolumes")
        .with("type", "DATADISK")
        .with("virtualmachineid", virtual_machine_id)
        .within(scope)
}

/// The root disks. Nothing tells whose cluster's machines they are of but the machines themselves.
pub fn list_root_disks(scope: &Scope) -> Request {
    Request::new("listVolumes").with("type", "ROOT").within(scope)
}

/// Data disks with a tag.
pub fn list_data_disks_by_tag(key: &str, value: &str, scope: &Scope) -> Request {
    Request::new("listVolumes").with("type", "DATADISK").pairs("tags", [(key, value)]).within(scope)
}

/// Data disks in whose name this occurs.
pub fn list_data_disks_by_keyword(keyword: &str, scope: &Scope) -> Request {
    Request::new("listVolumes").with("type", "DATADISK").with("keyword", keyword).within(scope)
}

/// Makes a data disk that is attached to nothing yet.
pub fn create_volume(name: &str, zone_id: &str, disk: &NewDisk, scope: &Scope) -> Request {
    Request::new("createVolume")
        .with("name", name)
        .with("zoneid", zone_id)
        .with("diskofferingid", disk.offering_id.as_str())
        .maybe("size", disk.size_gb.map(|size| size.to_string()))
        .maybe("miniops", disk.iops.map(|(least, _)| least.to_string()))
        .maybe("maxiops", disk.iops.map(|(_, most)| most.to_string()))
        .within(scope)
}

/// Attaches a data disk, as this device or as whichever is free.
pub fn attach_volume(id: &str, virtual_machine_id: &str, device: Option<i64>) -> Request {
    let request = Request::new("attachVolume").with("id", id).with("virtualmachineid", virtual_machine_id);
    match device {
        Some(device) => request.with("deviceid", device.to_string()),
        None => request,
    }
}

/// Removes a data disk that is attached to nothing. Not by `destroyVolume`, which is accepted for a disk that never was attached and
/// comes to nothing: such a one can only be expunged, which tenants may by this command and perhaps not by that.
pub fn destroy_volume(id: &str) -> Request {
    Request::new("deleteVolume").with("id", id)
}

/// As which of a machine's disks the extra disk of this number is attached: 0 is the root disk, 3 the CD drive.
pub fn device(number: usize) -> i64 {
    i64::try_from(if number < 2 { number + 1 } else { number + 2 }).unwrap_or(i64::MAX)
}

/// An extra disk of a new virtual machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewDisk {
    /// Its offering.
    pub offering_id: String,
    /// Its size, where the offering leaves it open.
    pub size_gb: Option<i64>,
    /// Operations per second at least and at most, where the offering leaves them open.
    pub iops: Option<(i64, i64)>,
}

impl NewDisk {
    /// Whether a server that makes one disk with a machine can make this one: it cannot be told operations per second.
    pub(crate) fn is_made_by_old_servers(&self) -> bool {
        self.iops.is_none()
    }
}

/// A new virtual machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deploy {
    /// Name and host name: letters, digits and hyphens, at most 63.
    pub name: String,
    /// Zone.
    pub zone_id: String,
    /// Service offering.
    pub service_offering_id: String,
    /// Template.
    pub template_id: String,
    /// Networks in the order of the interfaces; the first is the default.
    pub network_ids: Vec<String>,
    /// Security groups.
    pub security_group_ids: Vec<String>,
    /// Affinity groups.
    pub affinity_group_ids: Vec<String>,
    /// Key pairs.
    pub key_pairs: Vec<String>,
    /// Whether it is one that is to be told alone: the server is too old to give a machine more, or its name would be taken for several.
    pub single_key_pair: bool,
    /// Base64.
    pub user_data: Option<String>,
    /// Id of registered user data.
    pub user_data_id: Option<String>,
    /// Values of its variables.
    pub user_data_details: BTreeMap<String, String>,
    /// Root disk.
    pub root_disk_size_gb: Option<i64>,
    /// Disk offering of the root disk.
    pub root_disk_offering_id: Option<String>,
    /// Extra disks.
    pub data_disks: Vec<NewDisk>,
    /// Whether the server is too old to make more than one, and wants that one told otherwise. Further ones are attached later.
    pub single_disk: bool,
    /// Settings such as `cpuNumber` and `memory` of a customised offering.
    pub details: BTreeMap<String, String>,
    /// Group shown in the user interface.
    pub group: Option<String>,
    /// `Bios` or `UEFI`.
    pub boot_type: Option<String>,
    /// `Legacy` or `Secure`.
    pub boot_mode: Option<String>,
    /// Hypervisor, where the template leaves it open.
    pub hypervisor: Option<String>,
    /// Whether it may be given more cores or memory while it runs.
    pub dynamic_scaling: bool,
    /// The id its job gets. Never used twice: the server would leave a machine behind.
    pub job_id: String,
    /// Project or account.
    pub scope: Scope,
}

/// Makes a virtual machine.
pub fn deploy(new: &Deploy) -> Request {
    let mut request = Request::new("deployVirtualMachine")
        .with("zoneid", new.zone_id.as_str())
        .with("serviceofferingid", new.service_offering_id.as_str())
        .with("templateid", new.template_id.as_str())
        .with("name", new.name.as_str())
        .with("displayname", new.name.as_str())
        .list("networkids", &new.network_ids)
        .list("securitygroupids", &new.security_group_ids)
        .list("affinitygroupids", &new.affinity_group_ids)
        .maybe("userdata", new.user_data.as_deref())
        .maybe("userdataid", new.user_data_id.as_deref())
        .maybe("rootdisksize", new.root_disk_size_gb.map(|size| size.to_string()))
        .maybe("overridediskofferingid", new.root_disk_offering_id.as_deref())
        .maybe("group", new.group.as_deref())
        .maybe("boottype", new.boot_type.as_deref())
        .maybe("bootmode", new.boot_mode.as_deref())
        .maybe("hypervisor", new.hypervisor.as_deref())
        .with("dynamicscalingenabled", new.dynamic_scaling.to_string());
    request = match new.key_pairs.first().filter(|_| new.single_key_pair) {
        Some(pair) => request.with("keypair", pair.as_str()),
        None => request.list("keypairs", &new.key_pairs),
    };
    for (key, value) in &new.details {
        request = request.with(&format!("details[0].{key}"), value.as_str());
    }
    for (key, value) in &new.user_data_details {
        request = request.with(&format!("userdatadetails[0].{key}"), value.as_str());
    }
    if new.single_disk {
        if let Some(disk) = new.data_disks.first().filter(|disk| disk.is_made_by_old_servers()) {
            request = request
                .with("diskofferingid", disk.offering_id.as_str())
                .maybe("size", disk.size_gb.map(|size| size.to_string()));
        }
        return request.with("customjobid", new.job_id.as_str()).within(&new.scope);
    }
    for (i, disk) in new.data_disks.iter().enumerate() {
        let field = |name: &str| format!("datadisksdetails[{i}].{name}");
        // The device id is required, although the documentation says otherwise.
        request = request
            .with(&field("diskofferingid"), disk.offering_id.as_str())
            .with(&field("deviceid"), device(i).to_string())
            .maybe(&field("size"), disk.size_gb.map(|size| size.to_string()))
            .maybe(&field("miniops"), disk.iops.map(|(least, _)| least.to_string()))
            .maybe(&field("maxiops"), disk.iops.map(|(_, most)| most.to_string()));
    }
    request.with("customjobid", new.job_id.as_str()).within(&new.scope)
}

/// Destroys a virtual machine with these of its data disks; others would only be detached, even when it is expunged.
pub fn destroy(id: &str, expunge: bool, volume_ids: &[String]) -> Request {
    let request = Request::new("destroyVirtualMachine").with("id", id).list("volumeids", volume_ids);
    if expunge { request.with("expunge", "true") } else { request }
}

/// Starts a stopped virtual machine.
pub fn start(id: &str) -> Request {
    Request::new("startVirtualMachine").with("id", id)
}

/// Reboots a virtual machine.
pub fn reboot(id: &str) -> Request {
    Request::new("rebootVirtualMachine").with("id", id)
}

/// How far a job is.
pub fn query_job(id: &str) -> Request {
    Request::new("queryAsyncJobResult").with("jobid", id)
}

/// How far the last job of a virtual machine is; for servers since 4.22.1.
pub fn query_job_of_machine(id: &str) -> Request {
    Request::new("queryAsyncJobResult").with("resourcetype", "VirtualMachine").with("resourceid", id)
}

/// The newest events of a kind, such as `VM.STOP`. No time is asked for: servers take those to be of their own time zone.
pub fn list_events(kind: &str, scope: &Scope) -> Request {
    Request::new("listEvents").with("type", kind).with("page", "1").with("pagesize", "100").within(scope)
}

/// Tags virtual machines or volumes: all of the tags or none, and none may be there yet.
pub fn create_tags(resource_type: &str, ids: &[String], tags: &BTreeMap<String, String>) -> Request {
    Request::new("createTags")
        .list("resourceids", ids)
        .with("resourcetype", resource_type)
        .pairs("tags", tags.iter().map(|(key, value)| (key.as_str(), value.as_str())))
}

/// Removes a tag of virtual machines or volumes where it has this value. One at a time: where none is named, all of them go.
pub fn delete_tag(resource_type: &str, ids: &[String], tag: &Tag) -> Request {
    Request::new("deleteTags")
        .list("resourceids", ids)
        .with("resourcetype", resource_type)
        .pairs("tags", [(tag.key.as_str(), tag.value.as_str())])
}

/// Affinity groups by name.
pub fn list_affinity_groups(name: &str, scope: &Scope) -> Request {
    Request::new("listAffinityGroups").with("name", name).within(scope)
}

/// All affinity groups.
pub fn list_all_affinity_groups(scope: &Scope) -> Request {
    Request::new("listAffinityGroups").within(scope)
}

/// Affinity groups in whose name this occurs.
pub fn list_affinity_groups_by_keyword(keyword: &str, scope: &Scope) -> Request {
    Request::new("listAffinityGroups").with("keyword", keyword).within(scope)
}

/// Makes an affinity group.
pub fn create_affinity_group(name: &str, kind: &str, scope: &Scope) -> Request {
    Request::new("createAffinityGroup").with("name", name).with("type", kind).within(scope)
}

/// Removes an affinity group.
pub fn delete_affinity_group(id: &str, scope: &Scope) -> Request {
    Request::new("deleteAffinityGroup").with("id", id).within(scope)
}
