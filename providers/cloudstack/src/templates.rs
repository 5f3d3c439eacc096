//! Which templates a NodeClass may use.

use std::collections::BTreeSet;

use karpenter_api::labels as well_known;

use crate::GROUP;
use crate::client::model::{Template, time};
use crate::nodeclass::{CloudStackNodeClassSpec, SelectorTerm};
use crate::selection;

/// What a template must say to keep our user data out.
const DENIES_USER_DATA: &str = "DENYOVERRIDE";

/// The templates that are ready, newest first, and those that are selected and not ready yet. `isready` is what everybody sees;
/// `status` is hidden from tenants.
pub(crate) fn resolve(
    spec: &CloudStackNodeClassSpec,
    templates: &[Template],
) -> (Vec<Template>, Vec<Template>) {
    let mut found: Vec<Template> = templates
        .iter()
        .filter(|template| is_for(template, spec.hypervisor.as_deref()))
        .filter(|template| {
            spec.template_selector_terms.iter().any(|term| {
                let plain =
                    SelectorTerm { id: term.id.clone(), name: term.name.clone(), tags: term.tags.clone() };
                let alias = |key: &str, wanted: &Option<String>| {
                    wanted
                        .as_ref()
                        .is_none_or(|wanted| said(template, key).is_some_and(|v| selection::glob(wanted, v)))
                };
                if !alias("family", &term.family) || !alias("version", &term.version) {
                    return false;
                }
                let by_os = term.os_type.as_ref().is_none_or(|os| selection::glob(os, &template.ostypename));
                let plainly = term.id.is_some() || term.name.is_some() || term.tags.is_some();
                let otherwise = term.os_type.is_some() || term.family.is_some();
                by_os
                    && ((!plainly && otherwise)
                        || selection::matches(&plain, &template.id, &template.name, |key| {
                            selection::tag_values(&template.tags, key)
                        }))
            })
        })
        .cloned()
        .collect();
    found.sort_by(|a, b| time(&b.created).cmp(&time(&a.created)).then_with(|| a.id.cmp(&b.id)));
    found.into_iter().partition(|template| template.isready)
}

/// Whether machines of a template can be of this hypervisor: the server refuses to make them of another than the template's.
fn is_for(template: &Template, wanted: Option<&str>) -> bool {
    let says = |word: &str| template.hypervisor.eq_ignore_ascii_case(word);
    // A custom one is shown by the name somebody gave it.
    let is_custom = |wanted: &str| wanted.eq_ignore_ascii_case("Custom");
    says("") || says("None") || wanted.is_none_or(|wanted| says(wanted) || is_custom(wanted))
}

/// What a template says of itself under this name: in a tag of Karpenter's, a tag or a detail.
fn said<'a>(template: &'a Template, key: &str) -> Option<&'a str> {
    let tag = |key: &str| template.tags.iter().find(|tag| tag.key == key).map(|tag| tag.value.as_str());
    let detail = || template.details.get(key)?.as_str();
    tag(&format!("{GROUP}/{key}")).or_else(|| tag(key)).or_else(detail)
}

/// The architecture of its machines, in Kubernetes' words.
pub(crate) fn arch<'a>(template: &Template, spec: &'a CloudStackNodeClassSpec) -> &'a str {
    match template.arch.as_str() {
        "x86_64" => well_known::ARCH_AMD64,
        "aarch64" => well_known::ARCH_ARM64,
        _ => spec.arch.as_deref().unwrap_or(well_known::ARCH_AMD64),
    }
}

/// The architectures there are templates for.
pub(crate) fn architectures<'a>(
    templates: &[Template],
    spec: &'a CloudStackNodeClassSpec,
) -> BTreeSet<&'a str> {
    templates.iter().map(|template| arch(template, spec)).collect()
}

/// Those machines are made from: the newest of each architecture.
pub(crate) fn used<'a>(
    templates: &'a [Template],
    spec: &CloudStackNodeClassSpec,
) -> impl Iterator<Item = &'a Template> {
    architectures(templates, spec).into_iter().filter_map(|arch| for_arch(templates, spec, arch))
}

/// The template for an architecture: the newest.
pub(crate) fn for_arch<'a>(
    templates: &'a [Template],
    spec: &CloudStackNodeClassSpec,
    wanted: &str,
) -> Option<&'a Template> {
    templates.iter().find(|template| arch(template, spec) == wanted)
}

/// Whether it brings user data of its own and lets no other in.
pub(crate) fn denies_user_data(template: &Template) -> bool {
    template.userdatapolicy.eq_ignore_ascii_case(DENIES_USER_DATA)
}
