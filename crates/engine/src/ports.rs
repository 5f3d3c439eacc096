//! Host ports: no two pods of a node may hold the same one.

use std::net::{IpAddr, Ipv4Addr};

use crate::pod::HostPort;

fn unspecified(ip: Option<IpAddr>) -> bool {
    ip.is_some_and(|ip| canonical(ip).is_unspecified())
}

/// An IPv4 address written as IPv6 is the same address.
fn canonical(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(ip, |v4: Ipv4Addr| IpAddr::V4(v4)),
        v4 => v4,
    }
}

/// Whether two ports cannot be held together.
pub(crate) fn clash(a: &HostPort, b: &HostPort) -> bool {
    a.protocol == b.protocol
        && a.port == b.port
        && (a.ip.map(canonical) == b.ip.map(canonical) || unspecified(a.ip) || unspecified(b.ip))
}

/// The first of `wanted` that clashes with one `held`.
pub(crate) fn first_clash<'p>(wanted: &'p [HostPort], held: &[HostPort]) -> Option<&'p HostPort> {
    wanted.iter().find(|w| held.iter().any(|h| clash(w, h)))
}
