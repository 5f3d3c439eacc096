//! `karpenter crds`: the definitions of every kind we own, as YAML for `kubectl apply`.

use std::io::Write;

use anyhow::{Context, bail};
use karpenter_api::crd::Crd;
use karpenter_provider_cloudstack::CloudStackNodeClass;
use karpenter_provider_cluster_api::ClusterAPINodeClass;
use karpenter_provider_kwok::KWOKNodeClass;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print only this kind (may be repeated).
    #[arg(long = "kind", value_name = "KIND")]
    kinds: Vec<String>,
}

pub(crate) fn cmd(args: &Args) -> anyhow::Result<()> {
    let crds = selected(&args.kinds)?;
    let yaml = render(&crds)?;
    std::io::stdout().lock().write_all(yaml.as_bytes()).context("cannot write to standard output")
}

fn all() -> Vec<Crd> {
    let mut crds = karpenter_api::crds();
    crds.extend([KWOKNodeClass::crd(), ClusterAPINodeClass::crd(), CloudStackNodeClass::crd()]);
    crds
}

fn selected(kinds: &[String]) -> anyhow::Result<Vec<Crd>> {
    let crds = all();
    if let Some(unknown) = kinds.iter().find(|kind| crds.iter().all(|crd| crd.kind != kind.as_str())) {
        let known: Vec<&str> = crds.iter().map(|crd| crd.kind).collect();
        bail!("unknown kind {unknown:?}: choose one of {}", known.join(", "));
    }
    let wanted = |crd: &Crd| kinds.is_empty() || kinds.iter().any(|kind| kind == crd.kind);
    Ok(crds.into_iter().filter(wanted).collect())
}

fn render(crds: &[Crd]) -> anyhow::Result<String> {
    let mut yaml = String::new();
    for crd in crds {
        let document = serde_saphyr::to_string(&crd.to_json())
            .with_context(|| format!("cannot write the definition of {} as YAML", crd.kind))?;
        yaml.push_str("---\n");
        yaml.push_str(&document);
        if !document.ends_with('\n') {
            yaml.push('\n');
        }
    }
    Ok(yaml)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn what_is_printed_reads_back_as_the_definitions() {
        let crds = all();
        assert_eq!(crds.len(), 7);
        for crd in &crds {
            let yaml = render(std::slice::from_ref(crd)).unwrap();
            let back: Value = serde_saphyr::from_str(&yaml).unwrap();
            assert_eq!(back, crd.to_json(), "{}", crd.kind);
        }
    }

    #[test]
    fn a_kind_can_be_chosen_and_an_unknown_one_is_answered_with_the_choices() {
        let chosen = selected(&["NodePool".to_owned(), "KWOKNodeClass".to_owned()]).unwrap();
        assert_eq!(chosen.iter().map(|c| c.kind).collect::<Vec<_>>(), ["NodePool", "KWOKNodeClass"]);
        let error = selected(&["nodepool".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("\"nodepool\"") && error.contains("NodePool, NodeClaim"), "{error}");
    }

    #[test]
    fn every_property_says_what_it_is_for() {
        fn undescribed(schema: &Value, path: &str, found: &mut Vec<String>) {
            if let Some(properties) = schema["properties"].as_object() {
                for (name, property) in properties {
                    let path = format!("{path}.{name}");
                    if property["description"].as_str().is_none_or(str::is_empty) && path != ".metadata" {
                        found.push(path.clone());
                    }
                    undescribed(property, &path, found);
                }
            }
            undescribed_child(&schema["items"], &format!("{path}[]"), found);
            undescribed_child(&schema["additionalProperties"], &format!("{path}{{}}"), found);
        }
        fn undescribed_child(schema: &Value, path: &str, found: &mut Vec<String>) {
            if schema.is_object() {
                undescribed(schema, path, found);
            }
        }
        for crd in all() {
            let json = crd.to_json();
            let mut found = Vec::new();
            undescribed(&json["spec"]["versions"][0]["schema"]["openAPIV3Schema"], "", &mut found);
            assert!(found.is_empty(), "{}: {found:?}", crd.kind);
        }
    }
}
