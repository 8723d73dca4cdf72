//! `cfg(hosts)`, here and in the command: runs go over several hosts, which needs Linux.

fn main() {
    // No file.
    println!("cargo::rerun-if-env-changed=CARGO_FEATURE_HOSTS");
    println!("cargo::rustc-check-cfg=cfg(hosts)");
    let is_linux = std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux");
    if is_linux && std::env::var_os("CARGO_FEATURE_HOSTS").is_some() {
        println!("cargo::rustc-cfg=hosts");
    }
}
