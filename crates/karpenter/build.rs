//! How the program is laid out in its file, and so in memory, where whatever links and starts it can do it:
//!
//! - relocations are packed: written out one by one they are two megabytes that every process keeps in memory after having read
//!   them once;
//! - functions that run in an operator stand together (`layout/README.md`): the kernel brings code into memory in pieces of 64 KB,
//!   and scattered among all the others they bring half the program along.

use std::path::Path;
use std::process::{Command, Stdio};

const ORDER: &str = "layout/order.txt";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={ORDER}");
    if relocations_can_be_unpacked() {
        println!("cargo:rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
    // The order is one of names that only this profile gives.
    if var("PROFILE") == "release" {
        let order = Path::new(&var("CARGO_MANIFEST_DIR")).join(ORDER);
        let argument = format!("-Wl,--no-warn-symbol-ordering,--symbol-ordering-file={}", order.display());
        if linker_takes(&argument) {
            println!("cargo:rustc-link-arg-bins={argument}");
        }
    }
}

fn var(key: &str) -> String {
    std::env::var(key).unwrap_or_default()
}

/// Whether the C library, which is the builder's own, is glibc 2.36 or newer: a program built against it needs it anyway.
fn relocations_can_be_unpacked() -> bool {
    if var("HOST") != var("TARGET") || var("CARGO_CFG_TARGET_ENV") != "gnu" {
        return false;
    }
    let told = Command::new("getconf").arg("GNU_LIBC_VERSION").output();
    let told = told.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let version = told.trim().strip_prefix("glibc 2.").and_then(|minor| minor.parse::<u32>().ok());
    version.is_some_and(|minor| minor >= 36)
}

/// Whether the linker that will be used knows an argument: LLD, Rust's own for this platform, does; GNU's does not, and would fail.
fn linker_takes(argument: &str) -> bool {
    let out = Path::new(&var("OUT_DIR")).join("linked");
    let source = out.with_extension("rs");
    if std::fs::write(&source, "fn main() {}").is_err() {
        return false;
    }
    let mut rustc = Command::new(var("RUSTC"));
    rustc
        .arg(&source)
        .args(["--crate-type=bin", "--target", &var("TARGET"), "-C"])
        .arg(format!("link-arg={argument}"));
    rustc.arg("-o").arg(&out).stdout(Stdio::null()).stderr(Stdio::null());
    if let Ok(linker) = std::env::var("RUSTC_LINKER") {
        rustc.arg(format!("-Clinker={linker}"));
    }
    rustc.args(var("CARGO_ENCODED_RUSTFLAGS").split('\u{1f}').filter(|flag| !flag.is_empty()));
    rustc.status().is_ok_and(|status| status.success())
}
