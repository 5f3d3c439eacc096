//! What a request asks for, read from its method, path and query alone.
//!
//! Pure and total: any path gives a [`Target`], any query a [`Query`]. Whether the named resource exists is the
//! registry's business.

use std::num::IntErrorKind;

use http::Method;

/// What the path points at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// `/api`: the versions of the core group.
    CoreVersions,
    /// `/apis`: all named groups.
    Groups,
    /// `/apis/{group}`.
    Group(String),
    /// `/api/{version}` or `/apis/{group}/{version}`: the resources of one version.
    GroupVersion { group: String, version: String },
    /// An object, a collection or a subresource.
    Resource(ResourcePath),
    /// Anything else, by its path.
    Other(String),
}

/// The parts of a resource path, after `RequestInfo` of kube-apiserver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResourcePath {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) namespace: Option<String>,
    pub(crate) resource: String,
    pub(crate) name: Option<String>,
    pub(crate) subresource: Option<String>,
    /// More segments than any resource has.
    pub(crate) excess: bool,
    /// The deprecated `/api/v1/watch/...` form.
    pub(crate) watch: bool,
}

/// What is to be done, in RBAC's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
}

impl Verb {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
        }
    }

    /// `None` for a method that no resource answers.
    pub(crate) fn of(method: &Method, path: &ResourcePath, query: &Query) -> Option<Self> {
        let named = path.name.is_some();
        let watch = path.watch || query.flag("watch");
        Some(match (method, named) {
            (&Method::GET, true) => Self::Get,
            (&Method::GET, false) if watch => Self::Watch,
            (&Method::GET, false) => Self::List,
            // POST with a name is legal on subresources only (eviction, binding); the registry refuses the rest.
            (&Method::POST, _) => Self::Create,
            (&Method::PUT, true) => Self::Update,
            (&Method::PATCH, true) => Self::Patch,
            (&Method::DELETE, true) => Self::Delete,
            (&Method::DELETE, false) => Self::DeleteCollection,
            _ => return None,
        })
    }
}

impl Target {
    pub(crate) fn parse(path: &str) -> Self {
        // An escaped slash separates like any other; an empty segment inside leads nowhere.
        let decoded = percent_decode(path, false).unwrap_or_else(|| path.to_owned());
        let trimmed = decoded.strip_suffix('/').unwrap_or(&decoded);
        let segments: Vec<&str> = trimmed.strip_prefix('/').unwrap_or(trimmed).split('/').collect();
        if segments.iter().any(|segment| segment.is_empty()) {
            return Self::Other(path.to_owned());
        }
        let mut rest = segments.iter().copied();
        let (group, version) = match (rest.next(), segments.len()) {
            (Some("api"), 1) => return Self::CoreVersions,
            (Some("apis"), 1) => return Self::Groups,
            (Some("apis"), 2) => return Self::Group(segments[1].to_owned()),
            (Some("api"), _) => (String::new(), rest.next()),
            (Some("apis"), _) => (rest.next().unwrap_or_default().to_owned(), rest.next()),
            _ => return Self::Other(path.to_owned()),
        };
        let version = version.unwrap_or_default().to_owned();
        let mut parts: Vec<&str> = rest.collect();
        if parts.is_empty() {
            return Self::GroupVersion { group, version };
        }
        let mut found = ResourcePath { group, version, ..ResourcePath::default() };
        if parts[0] == "watch" && parts.len() > 1 {
            found.watch = true;
            parts.remove(0);
        }
        // `namespaces/x` is the object; `namespaces/x/status` its subresource; `namespaces/x/pods` what is inside it.
        let inside_namespace =
            parts[0] == "namespaces" && parts.len() > 2 && !matches!(parts[2], "status" | "finalize");
        if inside_namespace {
            found.namespace = Some(parts[1].to_owned());
            parts.drain(..2);
        }
        found.resource = parts[0].to_owned();
        found.name = parts.get(1).map(|s| (*s).to_owned());
        found.subresource = parts.get(2).map(|s| (*s).to_owned());
        found.excess = parts.len() > 3;
        Self::Resource(found)
    }
}

/// The decoded query parameters, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    pub(crate) fn parse(query: Option<&str>) -> Self {
        // Like Go, drops pairs whose escapes are malformed.
        let pairs = query.unwrap_or_default().split('&').filter(|p| !p.is_empty()).filter_map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            Some((percent_decode(key, true)?, percent_decode(value, true)?))
        });
        Self(pairs.collect())
    }

    /// The first value of a parameter; an empty value counts as absent.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, v)| v.as_str()).filter(|v| !v.is_empty())
    }

    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, v)| v.as_str())
    }

    /// A boolean as kube-apiserver reads one: present and neither `false` nor `0`.
    pub(crate) fn flag(&self, name: &str) -> bool {
        self.0
            .iter()
            .any(|(key, value)| key == name && !matches!(value.to_ascii_lowercase().as_str(), "false" | "0"))
    }

    /// An optional integer; the error is Go's.
    pub(crate) fn integer(&self, name: &str) -> Result<Option<i64>, String> {
        let given = self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        given
            .map(|text| {
                text.parse().map_err(|error: std::num::ParseIntError| {
                    let why = match error.kind() {
                        IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "value out of range",
                        _ => "invalid syntax",
                    };
                    format!("strconv.ParseInt: parsing {text:?}: {why}")
                })
            })
            .transpose()
    }
}

/// Undoes `%XX` (and `+` in queries); `None` for malformed escapes. Bytes that are no UTF-8 become U+FFFD.
fn percent_decode(text: &str, plus_is_space: bool) -> Option<String> {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = |i: usize| bytes.get(i).and_then(|b| char::from(*b).to_digit(16));
        match bytes[at] {
            b'%' => match (hex(at + 1), hex(at + 2)) {
                (Some(high), Some(low)) => {
                    out.push((high * 16 + low) as u8);
                    at += 2;
                }
                _ => return None,
            },
            b'+' if plus_is_space => out.push(b' '),
            other => out.push(other),
        }
        at += 1;
    }
    Some(String::from_utf8(out).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource(path: &str) -> ResourcePath {
        match Target::parse(path) {
            Target::Resource(found) => found,
            other => panic!("{path} is {other:?}"),
        }
    }

    #[test]
    fn paths_fall_into_their_parts() {
        let table = [
            ("/api/v1/nodes", "", "nodes", "", ""),
            ("/api/v1/nodes/n", "", "nodes", "n", ""),
            ("/api/v1/nodes/n/status", "", "nodes", "n", "status"),
            ("/api/v1/namespaces", "", "namespaces", "", ""),
            ("/api/v1/namespaces/x", "", "namespaces", "x", ""),
            ("/api/v1/namespaces/x/finalize", "", "namespaces", "x", "finalize"),
            ("/api/v1/namespaces/x/status", "", "namespaces", "x", "status"),
            ("/api/v1/namespaces/x/pods", "x", "pods", "", ""),
            ("/api/v1/namespaces/x/pods/p/eviction", "x", "pods", "p", "eviction"),
            ("/apis/apps/v1/namespaces/x/deployments/d/scale", "x", "deployments", "d", "scale"),
            ("/apis/karpenter.sh/v1/nodepools/a%2Db", "", "nodepools", "a-b", ""),
        ];
        for (path, namespace, plural, name, subresource) in table {
            let found = resource(path);
            let got = (
                found.namespace.as_deref().unwrap_or_default(),
                found.resource.as_str(),
                found.name.as_deref().unwrap_or_default(),
                found.subresource.as_deref().unwrap_or_default(),
            );
            assert_eq!(got, (namespace, plural, name, subresource), "{path}");
        }
        assert!(resource("/api/v1/namespaces/x/pods/p/log/more").excess);
        assert!(resource("/api/v1/watch/pods").watch);
    }

    #[test]
    fn what_is_no_resource_is_told_apart() {
        assert_eq!(Target::parse("/api"), Target::CoreVersions);
        assert_eq!(Target::parse("/apis/"), Target::Groups);
        assert_eq!(Target::parse("/apis/apps"), Target::Group("apps".into()));
        assert_eq!(
            Target::parse("/api/v1"),
            Target::GroupVersion { group: String::new(), version: "v1".into() }
        );
        assert_eq!(Target::parse("/healthz"), Target::Other("/healthz".into()));
        assert_eq!(Target::parse(""), Target::Other(String::new()));
        assert_eq!(Target::parse("/api/v1//pods"), Target::Other("/api/v1//pods".into()));
    }

    #[test]
    fn queries_decode_and_drop_broken_escapes() {
        let query = Query::parse(Some("a=x%20y+z&b=%zz&watch=false&watch=1&limit=5q&empty="));
        assert_eq!(query.get("a"), Some("x y z"));
        assert_eq!(query.get("b"), None);
        assert_eq!(query.get("empty"), None);
        assert!(query.flag("watch"));
        assert_eq!(query.integer("limit"), Err("strconv.ParseInt: parsing \"5q\": invalid syntax".into()));
    }

    proptest::proptest! {
        #[test]
        fn any_path_and_query_parse(path in ".*", query in ".*") {
            let _ = Target::parse(&path);
            let _ = Query::parse(Some(&query));
        }
    }
}
