//! Which templates a NodeClass may use.

use karpenter_api::labels as well_known;

use crate::client::model::{Template, time};
use crate::nodeclass::{CloudStackNodeClassSpec, SelectorTerm};
use crate::selection;

/// What a template must say to keep our user data out.
const DENIES_USER_DATA: &str = "DENYOVERRIDE";

/// The templates that are ready, newest first. `isready` is what everybody sees; `status` is hidden from tenants.
pub(crate) fn resolve(spec: &CloudStackNodeClassSpec, templates: &[Template]) -> Vec<Template> {
    let mut found: Vec<Template> = templates
        .iter()
        .filter(|template| template.isready)
        .filter(|template| {
            spec.template_selector_terms.iter().any(|term| {
                let plain =
                    SelectorTerm { id: term.id.clone(), name: term.name.clone(), tags: term.tags.clone() };
                let by_os = term.os_type.as_ref().is_none_or(|os| selection::glob(os, &template.ostypename));
                let only_os =
                    term.id.is_none() && term.name.is_none() && term.tags.is_none() && term.os_type.is_some();
                by_os
                    && (only_os
                        || selection::matches(&plain, &template.id, &template.name, |key| {
                            selection::tag_values(&template.tags, key)
                        }))
            })
        })
        .cloned()
        .collect();
    found.sort_by(|a, b| time(&b.created).cmp(&time(&a.created)).then_with(|| a.id.cmp(&b.id)));
    found
}

/// The architecture of its machines, in Kubernetes' words.
pub(crate) fn arch<'a>(template: &Template, spec: &'a CloudStackNodeClassSpec) -> &'a str {
    match template.arch.as_str() {
        "x86_64" => well_known::ARCH_AMD64,
        "aarch64" => well_known::ARCH_ARM64,
        _ => spec.arch.as_deref().unwrap_or(well_known::ARCH_AMD64),
    }
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
