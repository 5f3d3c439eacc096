//! What labels say of a machine by the size it is of: a value, or that it has none. Pure.
//!
//! A label that is well known and not spoken of counts as whatever somebody asks for. So each is spoken of: who asks for a host
//! tag gets no machine of an offering without one.

use std::collections::BTreeMap;

use karpenter_api::labels as well_known;
use karpenter_engine::requirement::Requirement;

use crate::instancetypes::{Size, tag};
use crate::labels;
use crate::naming::label_value;
use crate::nodeclass::CloudStackNodeClassSpec;

/// Labels with their values; nothing where a machine does not have the label.
pub(crate) type Described = BTreeMap<&'static str, Option<String>>;

/// What the labels of machines of a size say that not every size has a value for.
pub(crate) fn of(size: &Size, spec: &CloudStackNodeClassSpec) -> Described {
    let offering = &size.offering;
    let text = |text: &str| (!text.is_empty()).then(|| label_value(text));
    let number = |number: Option<i64>| number.filter(|number| *number > 0).map(|number| number.to_string());
    let host_tag = match &tag(offering, "hosttag")[..] {
        [tag] => text(tag),
        // A node has one value of a label: of several tags none could be told.
        _ => None,
    };
    let has_gpu = offering.gpucount.is_some_and(|count| count > 0);
    let of_gpu = |value: Option<String>| value.filter(|_| has_gpu);
    let maker = gpu_resource(size, spec).split(['.', '/']).find(|word| *word != "gpu").map(str::to_owned);
    [
        (labels::HOST_TAGS, host_tag),
        (labels::INSTANCE_CPU_MHZ, number(size.core_mhz())),
        (labels::INSTANCE_NETWORK_BANDWIDTH, number(offering.networkrate)),
        (labels::STORAGE_TYPE, text(&offering.storagetype)),
        (labels::HIGH_AVAILABILITY, Some(offering.offerha.to_string())),
        (labels::INSTANCE_GPU_COUNT, number(offering.gpucount)),
        (labels::INSTANCE_GPU_NAME, of_gpu(text(&offering.gpucardname))),
        (labels::INSTANCE_GPU_MANUFACTURER, of_gpu(maker)),
        (labels::INSTANCE_GPU_MEMORY, of_gpu(number(offering.videoram))),
        (well_known::WINDOWS_BUILD, None),
    ]
    .into()
}

/// The same as a requirement.
pub(crate) fn requirement(key: &str, value: Option<&str>) -> Requirement {
    match value {
        Some(value) => Requirement::one_of(key, [value]),
        None => Requirement::does_not_exist(key),
    }
}

/// The resource its GPUs are asked for by.
pub(crate) fn gpu_resource<'a>(size: &Size, spec: &'a CloudStackNodeClassSpec) -> &'a str {
    let name = size.offering.gpucardname.to_lowercase();
    let guessed = if ["amd", "radeon", "instinct"].iter().any(|word| name.contains(word)) {
        "amd.com/gpu"
    } else if name.contains("intel") {
        "gpu.intel.com/i915"
    } else {
        "nvidia.com/gpu"
    };
    spec.gpu_resource.as_deref().unwrap_or(guessed)
}
