//! Has the linker pack the program's relocations where whatever starts it can unpack them: written out one by one they are two
//! megabytes that every process keeps in memory after having read them once.

use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if is_understood() {
        println!("cargo:rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}

/// Whether the C library, which is the builder's own, is glibc 2.36 or newer: a program built against it needs it anyway.
fn is_understood() -> bool {
    let target = |key: &str| std::env::var(key).unwrap_or_default();
    if target("HOST") != target("TARGET") || target("CARGO_CFG_TARGET_ENV") != "gnu" {
        return false;
    }
    let told = Command::new("getconf").arg("GNU_LIBC_VERSION").output();
    let told = told.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let version = told.trim().strip_prefix("glibc 2.").and_then(|minor| minor.parse::<u32>().ok());
    version.is_some_and(|minor| minor >= 36)
}
