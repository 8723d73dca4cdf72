//! A sound card without hardware: a plug-in of ALSA that is compiled here, with a clock that is off by as much as asked.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The compiled plug-in; `None` where the compiler or ALSA's headers are missing.
fn plug_in() -> Option<&'static Path> {
    static PLUG_IN: OnceLock<Option<PathBuf>> = OnceLock::new();
    let plug_in = PLUG_IN.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let source = folder.join("zbmd_test_card.c");
        let library = folder.join("zbmd_test_card.so");
        std::fs::write(&source, include_str!("card.c")).expect("written");
        let compiled = Command::new("cc")
            .args(["-shared", "-fPIC", "-DPIC", "-O1", "-o"])
            .args([&library, &source])
            .arg("-lasound")
            .output();
        match compiled {
            Ok(output) if output.status.success() => Some(library),
            Ok(output) => {
                eprintln!("cc: {}", String::from_utf8_lossy(&output.stderr));
                None
            }
            Err(error) => {
                eprintln!("cc: {error}");
                None
            }
        }
    });
    plug_in.as_deref()
}

/// Writes a configuration with the sound card `test_card` into a folder, off by so much. What it plays goes to
/// `played.f32` there.
pub(crate) fn configure(folder: &Path, ppm: f64) -> bool {
    let Some(plug_in) = plug_in() else {
        eprintln!("SKIPPED: no test sound card (apt-get install gcc libasound2-dev)");
        return false;
    };
    let text = format!(
        "</usr/share/alsa/alsa.conf>
pcm_type.zbmd_test_card {{ lib \"{}\" }}
pcm.test_card {{
    type zbmd_test_card
    path \"{}\"
    ppm {ppm}
    hint {{ show on description \"a sound card for tests\" }}
}}
",
        plug_in.display(),
        folder.join("played.f32").display()
    );
    std::fs::write(folder.join("asound.conf"), text).expect("written");
    true
}
