//! `cfg(hosts)`: runs go over several hosts, which needs Linux.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(hosts)");
    let is_linux = std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux");
    if is_linux && std::env::var_os("CARGO_FEATURE_HOSTS").is_some() {
        println!("cargo::rustc-cfg=hosts");
    }
}
