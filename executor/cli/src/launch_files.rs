//! Tests of the files in `executor/cli/launch`: what they start is what this command line takes.

use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Parser;
use serde_json::Value;

use crate::args::{Args, Other};

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("launch")
        .join(name)
}

fn read(name: &str) -> String {
    std::fs::read_to_string(path(name)).expect("a file of this crate")
}

/// What the command line makes of these words, the first of which is the program.
#[track_caller]
fn parse(words: &[String]) -> Args {
    let program = Path::new(&words[0]).file_name().expect("a program");
    assert_eq!(program, "zbmd-run", "{words:?}");
    match Args::try_parse_from(words) {
        Ok(args) => args,
        Err(error) => panic!("{words:?}: {error}"),
    }
}

/// The words of a shell's command that begins with this, over all of its lines.
fn command_after(text: &str, start: &str) -> Vec<String> {
    let joined = text.replace("\\\n", " ");
    let mut lines = joined.lines();
    let line = lines.find_map(|line| line.strip_prefix(start));
    shlex::split(line.expect(start)).expect("words")
}

#[test]
fn the_unit_starts_an_agent() {
    let unit = read("zbmd-agent.service");
    let words = command_after(&unit, "ExecStart=");
    let args = parse(&words);
    assert!(matches!(args.command, Some(Other::Agent(_))), "{args:?}");

    let Ok(found) = Command::new("systemd-analyze").arg("--version").output() else {
        eprintln!("SKIPPED: no systemd-analyze here");
        return;
    };
    assert!(found.status.success());
    // The program that is there for sure: a unit without one is refused.
    let folder = tempfile::tempdir().expect("a folder");
    let copy = folder.path().join("zbmd-agent.service");
    std::fs::write(&copy, unit.replace(&words[0], "/bin/true")).expect("written");
    let verified = Command::new("systemd-analyze")
        .arg("verify")
        .arg(&copy)
        .output();
    let verified = verified.expect("started");
    let said = String::from_utf8_lossy(&verified.stderr);
    let about_unit: Vec<&str> = said
        .lines()
        .filter(|line| line.contains("zbmd-agent"))
        .collect();
    assert!(about_unit.is_empty(), "{said}");
}

/// The command lines of a manifest's containers.
fn container_words(manifest: &Value) -> Vec<Vec<String>> {
    let containers = manifest["spec"]["template"]["spec"]["containers"].as_array();
    let words = |list: &Value| -> Vec<String> {
        let words = list.as_array().into_iter().flatten();
        words
            .map(|word| word.as_str().expect("a word").to_owned())
            .collect()
    };
    let containers = containers.into_iter().flatten();
    containers
        .map(|container| [words(&container["command"]), words(&container["args"])].concat())
        .collect()
}

#[test]
fn the_manifests_start_agents_and_a_run_that_find_each_other() {
    let text = read("kubernetes.yaml");
    let manifests: Vec<Value> = serde_saphyr::from_multiple(&text).expect("YAML");
    let of_kind = |kind: &str, name: &str| {
        let found = manifests
            .iter()
            .find(|manifest| manifest["kind"] == kind && manifest["metadata"]["name"] == name);
        found.unwrap_or_else(|| panic!("no {kind} {name}"))
    };

    let agents = of_kind("StatefulSet", "zbmd-agent");
    let agent_words = container_words(agents);
    assert!(matches!(
        parse(&agent_words[0]).command,
        Some(Other::Agent(_))
    ));
    let run = of_kind("Job", "zbmd-run");
    let run_args = parse(&container_words(run)[0]);
    assert!(run_args.command.is_none() && run_args.resume);
    // The run's own host is the machine's first.
    assert_eq!(agents["spec"]["ordinals"]["start"], 1);

    let port = run_args.gathering.gather.expect("a port").port();
    let join = format!("--join=zbmd-run:{port}");
    assert!(agent_words[0].contains(&join), "{agent_words:?}");
    for (manifest, service) in [(agents, "zbmd-agent"), (run, "zbmd-run")] {
        let service = of_kind("Service", service);
        let labels = &manifest["spec"]["template"]["metadata"]["labels"];
        assert_eq!(&service["spec"]["selector"], labels);
    }
    assert_eq!(
        of_kind("Service", "zbmd-run")["spec"]["ports"][0]["port"],
        port
    );
    for container in [agents, run].map(|m| m["spec"]["template"]["spec"].clone()) {
        // Nobody but its owner may read the token.
        assert_eq!(container["volumes"][0]["secret"]["defaultMode"], 0o400);
    }
}

/// Kubernetes' own client reads them, as objects of the types that it knows.
#[test]
fn the_manifests_are_what_kubernetes_takes() {
    let text = read("kubernetes.yaml");
    let with_pods = text
        .split("\n---\n")
        .filter(|manifest| manifest.contains("\n    spec:\n"));
    let with_pods: Vec<&str> = with_pods.collect();
    assert_eq!(with_pods.len(), 2);
    let folder = tempfile::tempdir().expect("a folder");
    let copy = folder.path().join("pods.yaml");
    std::fs::write(&copy, with_pods.join("\n---\n")).expect("written");

    let mut kubectl = Command::new("kubectl");
    kubectl
        .args(["set", "image", "--local", "*=zbmd:1", "--output=json", "-f"])
        .arg(&copy);
    let Ok(output) = kubectl.output() else {
        eprintln!("SKIPPED: no kubectl here");
        return;
    };
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    // What the types do not have is left out.
    let objects = String::from_utf8_lossy(&output.stdout);
    for field in ["ordinals", "backoffLimit", "defaultMode", "claimName"] {
        assert!(objects.contains(field), "{field}: {objects}");
    }
}

#[test]
fn the_script_for_slurm_starts_a_run() {
    let script = read("slurm.sbatch");
    let checked = Command::new("bash")
        .arg("-n")
        .arg(path("slurm.sbatch"))
        .status();
    assert!(checked.expect("started").success());
    let words = command_after(&script, "exec srun ");
    let program = words.iter().position(|word| word == "zbmd-run");
    let mut words = words[program.expect("the program")..].to_vec();
    // What the shell puts in their places.
    let given = ["model.zbmd", "-i", "in=in.f32", "-o", "out=out.f32"].map(str::to_owned);
    words.splice(1..2, given);
    for word in &mut words {
        *word = word.replace("${ZBMD_PORT:-7100}", "7100");
    }
    let args = parse(&words);
    assert!(args.resume && args.gathering.gather.is_some(), "{args:?}");
}

#[test]
fn the_launch_file_starts_agents_and_a_run() {
    let launch = crate::up::LaunchFile::read(&path("launch.ron")).expect("a file");
    parse(&launch.run_words());
    for host in launch.hosts.values() {
        let args = parse(&launch.agent_words(host, host.address));
        assert!(matches!(args.command, Some(Other::Agent(_))), "{args:?}");
    }
}
