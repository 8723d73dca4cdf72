//! The header is what cbindgen makes of the source: made anew and compared, or written where `ZBMD_BLESS` is set.

use std::path::Path;

#[test]
fn the_header_is_made_of_the_source() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(folder.join("cbindgen.toml")).expect("cbindgen.toml");
    let files = [
        "status",
        "options",
        "bundle",
        "caller",
        "session",
        "parameters",
        "modes",
        "probes",
        "live",
        "streams",
    ];
    let builder = cbindgen::Builder::new().with_config(config);
    let builder = files.iter().fold(builder, |builder, file| {
        builder.with_src(folder.join(format!("src/{file}.rs")))
    });
    let mut made = Vec::new();
    builder.generate().expect("a header").write(&mut made);
    let made = String::from_utf8(made).expect("UTF-8");
    let path = folder.join("include/zbmd.h");
    if std::env::var_os("ZBMD_BLESS").is_some() {
        std::fs::write(&path, &made).expect("the header can be written");
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == made,
        "include/zbmd.h is not what the source says: `ZBMD_BLESS=1 cargo test -p zbmd-c --lib` makes it anew"
    );
}
